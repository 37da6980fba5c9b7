"""What commands and Python calls share: plans, measurements, trainings and their folders."""
