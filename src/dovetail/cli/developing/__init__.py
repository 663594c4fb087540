"""What `dovetail dev` is made of: the files it watches, the processes that serve, and who keeps one of them serving."""
