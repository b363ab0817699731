//! The channel between a process and its successor: messages with file descriptors.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zeroize::Zeroizing;

/// One end of the channel. Calls block.
#[derive(Debug)]
pub struct HandoffChannel(UnixStream);

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// The payload, which may contain secrets.
    pub bytes: Zeroizing<Vec<u8>>,
    /// The file descriptors, in the sender's order.
    pub descriptors: Vec<OwnedFd>,
}

impl HandoffChannel {
    /// Creates both ends. The second one becomes the successor's standard input.
    ///
    /// # Errors
    /// If the sockets cannot be created.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (here, there) = UnixStream::pair()?;
        Ok((Self(here), there.into()))
    }

    /// Opens the end at standard input, in a process that a predecessor has started.
    ///
    /// # Errors
    /// If the descriptor cannot be duplicated.
    pub fn from_stdin() -> io::Result<Self> {
        let stdin = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self(UnixStream::from(stdin)))
    }

    /// Limits how long each call waits for the other process; `None` removes the limit.
    ///
    /// # Errors
    /// If the limit is zero.
    pub fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(limit)?;
        self.0.set_write_timeout(limit)
    }

    /// Sends a message with descriptors, which stay open in this process.
    ///
    /// # Errors
    /// If the other process has exited, or does not read.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&length(bytes.len())?);
        header[4..].copy_from_slice(&length(descriptors.len())?);
        (&self.0).write_all(&header)?;
        for batch in descriptors.chunks(MAX_BATCH_DESCRIPTORS) {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_BATCH_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(batch));
            sendmsg(&self.0, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
        }
        (&self.0).write_all(bytes)
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// If the other process has exited or sends nothing, or [`io::ErrorKind::InvalidData`] if the
    /// bytes are not a message.
    pub fn receive(&self) -> io::Result<Message> {
        let mut header = [0; HEADER_BYTES];
        (&self.0).read_exact(&mut header)?;
        let number = |at: usize| {
            let bytes = header[at..].first_chunk().copied().unwrap_or_default();
            usize::try_from(u32::from_be_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let (byte_count, descriptor_count) = (number(0), number(4));
        if byte_count > MAX_MESSAGE_BYTES || descriptor_count > MAX_DESCRIPTORS {
            return Err(invalid());
        }
        let mut descriptors = Vec::new();
        while descriptors.len() < descriptor_count {
            let before = descriptors.len();
            self.receive_batch(&mut descriptors)?;
            if descriptors.len() == before {
                return Err(invalid());
            }
        }
        let mut bytes = Zeroizing::new(vec![0; byte_count]);
        (&self.0).read_exact(&mut bytes)?;
        Ok(Message { bytes, descriptors })
    }

    fn receive_batch(&self, descriptors: &mut Vec<OwnedFd>) -> io::Result<()> {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_BATCH_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let read = recvmsg(&self.0, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
        if read.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        Ok(())
    }
}

fn length(count: usize) -> io::Result<[u8; 4]> {
    u32::try_from(count).map(u32::to_be_bytes).map_err(|_| invalid())
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a handoff message")
}

const HEADER_BYTES: usize = 8;

/// Descriptors per system call; the kernel allows 253.
const MAX_BATCH_DESCRIPTORS: usize = 64;

/// More than any configuration has.
const MAX_DESCRIPTORS: usize = 16_384;
const MAX_MESSAGE_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::thread;

    use super::*;

    fn pair() -> (HandoffChannel, HandoffChannel) {
        let (here, there) = HandoffChannel::new().unwrap();
        (here, HandoffChannel(UnixStream::from(there)))
    }

    #[test]
    fn all_descriptors_arrive_in_order() {
        let (here, there) = pair();
        let dir = tempfile::tempdir().unwrap();
        let files: Vec<File> = (0..150)
            .map(|number| {
                let path = dir.path().join(number.to_string());
                std::fs::write(&path, number.to_string()).unwrap();
                File::open(path).unwrap()
            })
            .collect();
        let text = vec![b'x'; 300_000];
        let sending = {
            let text = text.clone();
            thread::spawn(move || {
                let descriptors: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                here.send(&text, &descriptors).unwrap();
                here.send(b"and again", &[]).unwrap();
                here
            })
        };
        let message = there.receive().unwrap();
        assert_eq!(*message.bytes, text);
        let contents = message.descriptors.into_iter().map(|descriptor| {
            let mut text = String::new();
            File::from(descriptor).read_to_string(&mut text).unwrap();
            text
        });
        assert!(contents.eq((0..150).map(|number: u32| number.to_string())));
        assert_eq!(*there.receive().unwrap().bytes, *b"and again");
        drop(sending.join().unwrap());
        assert_eq!(there.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn other_data_is_refused() {
        let (here, there) = pair();
        (&here.0).write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert_eq!(there.receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
        // Descriptors were announced, and none comes.
        let (here, there) = pair();
        (&here.0).write_all(&[0, 0, 0, 0, 0, 0, 0, 1, 0]).unwrap();
        assert_eq!(there.receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
