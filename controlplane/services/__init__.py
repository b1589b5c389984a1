"""gRPC servicers: unpack, call an operation, convert, map errors."""
