"""How well the number of replicas follows the demand."""
