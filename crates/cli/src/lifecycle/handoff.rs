//! The way between a process and its successor: messages with descriptors.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// One end of it. Calls block.
#[derive(Debug)]
pub struct HandoffChannel(UnixStream);

/// What has come.
#[derive(Debug)]
pub struct Message {
    /// What was said.
    pub bytes: Vec<u8>,
    /// What was given along, in order.
    pub descriptors: Vec<OwnedFd>,
}

impl HandoffChannel {
    /// Both ends: one stays, the other is the successor's standard input.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (here, there) = UnixStream::pair()?;
        Ok((Self(here), there.into()))
    }

    /// The end that this process has as its standard input, if it is one: a predecessor has started
    /// it.
    ///
    /// # Errors
    /// The system's.
    pub fn from_stdin() -> io::Result<Self> {
        let stdin = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self(UnixStream::from(stdin)))
    }

    /// Waits no longer than this for the other process; `None`: as long as it takes.
    ///
    /// # Errors
    /// The system's.
    pub fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(patience)?;
        self.0.set_write_timeout(patience)
    }

    /// Sends a message with descriptors, which stay open here.
    ///
    /// # Errors
    /// The system's: the other process has gone, or does not read.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&length(bytes.len())?);
        head[4..].copy_from_slice(&length(descriptors.len())?);
        (&self.0).write_all(&head)?;
        for batch in descriptors.chunks(BATCH) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(batch));
            sendmsg(&self.0, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
        }
        (&self.0).write_all(bytes)
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// The system's, or [`io::ErrorKind::InvalidData`]: not what a process of this kind sends.
    pub fn receive(&self) -> io::Result<Message> {
        let mut head = [0; HEAD];
        (&self.0).read_exact(&mut head)?;
        let number = |at: usize| {
            let bytes = head[at..].first_chunk().copied().unwrap_or_default();
            usize::try_from(u32::from_be_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let (count, wanted) = (number(0), number(4));
        if count > MAX_BYTES || wanted > MAX_DESCRIPTORS {
            return Err(invalid());
        }
        let mut descriptors = Vec::new();
        while descriptors.len() < wanted {
            let before = descriptors.len();
            self.receive_batch(&mut descriptors)?;
            if descriptors.len() == before {
                return Err(invalid());
            }
        }
        let mut bytes = vec![0; count];
        (&self.0).read_exact(&mut bytes)?;
        Ok(Message { bytes, descriptors })
    }

    fn receive_batch(&self, descriptors: &mut Vec<OwnedFd>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let read = recvmsg(&self.0, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
        if read.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(given) = message {
                descriptors.extend(given);
            }
        }
        Ok(())
    }
}

fn length(count: usize) -> io::Result<[u8; 4]> {
    u32::try_from(count).map(u32::to_be_bytes).map_err(|_| invalid())
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "this is no message of a process of this kind")
}

const HEAD: usize = 8;

/// Descriptors that the kernel takes at a time are 253.
const BATCH: usize = 64;

/// More than any configuration has.
const MAX_DESCRIPTORS: usize = 16_384;
const MAX_BYTES: usize = 64 << 20;

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
    fn descriptors_arrive_whole_and_in_order() {
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
                let given: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                here.send(&text, &given).unwrap();
                here.send(b"and again", &[]).unwrap();
                here
            })
        };
        let message = there.receive().unwrap();
        assert_eq!(message.bytes, text);
        let contents = message.descriptors.into_iter().map(|descriptor| {
            let mut text = String::new();
            File::from(descriptor).read_to_string(&mut text).unwrap();
            text
        });
        assert!(contents.eq((0..150).map(|number: u32| number.to_string())));
        assert_eq!(there.receive().unwrap().bytes, b"and again");
        drop(sending.join().unwrap());
        assert_eq!(there.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_no_successor_would_send_is_refused() {
        let (here, there) = pair();
        (&here.0).write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert_eq!(there.receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
        // Descriptors were announced, and none comes.
        let (here, there) = pair();
        (&here.0).write_all(&[0, 0, 0, 0, 0, 0, 0, 1, 0]).unwrap();
        assert_eq!(there.receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
