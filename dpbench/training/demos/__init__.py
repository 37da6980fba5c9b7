"""Small trainings that show what dp_train does, and check it."""
