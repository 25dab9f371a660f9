"""Files that run without fullrank. They can be imported in another framework's environment if their folder is on its
path.
"""
