"""`sitsctl top`: a live board in the terminal."""
