//! Stream sockets.
