"""What can be done, and by whom. `catalogue` lists the actions, the other modules carry them out."""
