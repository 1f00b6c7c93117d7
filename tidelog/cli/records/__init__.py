"""The commands that write and print records, with their formats, inputs and positions. It imports the terminal room
only."""
