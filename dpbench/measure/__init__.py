"""The part that runs inside one rank: wrap the model, verify its gradients, time its steps."""
