//! A connection that can be cut, reset, or made to say more than it should. It knows bytes, not requests.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use hyper::body::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};

/// What the connection does to the next answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Nothing.
    #[default]
    None,
    /// It is reset before the first byte.
    Reset,
    /// So many bytes of the body pass, then it ends.
    CutBody(usize),
    /// These bytes follow when it is closed.
    Append(Bytes),
}

/// Shared between a connection and whoever answers on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Mischief(Arc<Mutex<Trouble>>);

impl Mischief {
    pub(super) fn set(&self, trouble: Trouble) {
        *self.lock() = trouble;
    }

    fn lock(&self) -> MutexGuard<'_, Trouble> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

pub(super) struct Wire {
    stream: Stream,
    mischief: Mischief,
    /// How much of the blank line after the headers has passed.
    blank_line: usize,
}

const BLANK_LINE: &[u8; 4] = b"\r\n\r\n";

impl Wire {
    pub(super) fn new(stream: Stream) -> (Self, Mischief) {
        let mischief = Mischief::default();
        (Self { stream, mischief: mischief.clone(), blank_line: 0 }, mischief)
    }

    fn inner(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tcp(s) => Pin::new(s).poll_write(cx, bytes),
            Stream::Unix(s) => Pin::new(s).poll_write(cx, bytes),
        }
    }

    /// How many of `bytes` belong to the headers.
    fn header_part(&mut self, bytes: &[u8]) -> usize {
        for (position, byte) in bytes.iter().enumerate() {
            if self.blank_line == BLANK_LINE.len() {
                return position;
            }
            self.blank_line = match BLANK_LINE.get(self.blank_line) {
                Some(wanted) if wanted == byte => self.blank_line + 1,
                Some(_) | None => usize::from(*byte == b'\r'),
            };
        }
        bytes.len()
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Unix(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let trouble = self.mischief.lock().clone();
        match trouble {
            Trouble::None | Trouble::Append(_) => self.inner(cx, bytes),
            Trouble::Reset => {
                if let Stream::Tcp(s) = &self.stream {
                    s.set_zero_linger()?;
                }
                Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
            }
            Trouble::CutBody(left) => {
                let header = self.header_part(bytes);
                let allowed = bytes.len().min(header + left);
                if allowed == 0 {
                    return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                }
                // Small local writes: what is not taken at once is lost, which is what a cut is.
                let written = ready!(self.inner(cx, bytes.get(..allowed).unwrap_or_default()))?;
                self.mischief.set(Trouble::CutBody(left - written.saturating_sub(header).min(left)));
                Poll::Ready(Ok(written))
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(s) => Pin::new(s).poll_flush(cx),
            Stream::Unix(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let Trouble::Append(more) = self.mischief.lock().clone() else { break };
            if more.is_empty() {
                break;
            }
            let written = ready!(self.inner(cx, &more))?;
            self.mischief.set(Trouble::Append(more.slice(written..)));
        }
        match &mut self.stream {
            Stream::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Unix(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}
