//! Where frames enter and leave the link: what a backend has to offer.

use std::io;
use std::os::fd::AsFd;

/// One side of the link.
pub(crate) trait Port: AsFd + Send + 'static {
    /// Hands the next frame that has arrived to `take`, with the kernel's stamp of its arrival in
    /// nanoseconds of Unix time where there is one; `None` if there is no frame now.
    fn receive<R>(&mut self, take: impl FnOnce(&[u8], Option<u64>) -> R) -> Option<R>;

    /// Hands a frame to the receiving kernel.
    fn send(&mut self, frame: &[u8]) -> io::Result<()>;

    /// How many frames found no room since the last call, where the port itself can tell.
    fn take_dropped(&self) -> u64;
}
