"""Copies of files and folders between two machines: shared by both sides of `nsml cp`.

Standard library only: one side runs in a session, as its user, where nothing else is installed
(`nodeagent/shim/file_server.py`).
"""
