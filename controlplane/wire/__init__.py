"""Shared by servicers of all areas: errors as status codes, chunking of large answers, conversions, interceptors."""
