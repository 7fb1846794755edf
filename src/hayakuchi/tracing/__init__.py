"""Reading a traced program: its equations, and the source line and module that each comes from."""
