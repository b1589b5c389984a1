"""Copies of files and folders between two machines: what both sides of `nsml cp` share.

Standard library only: one side runs in a session, as its user, where nothing else can be loaded
(`nodeagent/shim/file_server.py`).
"""
