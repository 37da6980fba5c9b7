"""The part that runs inside one rank: wrap the model, prove its gradients, time its steps."""
