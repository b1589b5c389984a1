"""Upload and download of blobs, access checks, and garbage collection of unreferenced ones."""
