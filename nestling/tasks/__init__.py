"""What is learnt and how it is measured."""
