//! Lines over a TCP socket, for both ends. The socket is shared, so that a
//! connection in somebody's hands can still be shut down by somebody else.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;

use socket2::SockRef;
use tokio::net::TcpStream;

/// The longest line, with its end.
const LINE_MAX: usize = 64;

/// One end of a conversation.
pub(crate) struct Wire {
    stream: Arc<TcpStream>,
    buffer: [u8; LINE_MAX],
    filled: usize,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream: Arc::new(stream), buffer: [0; LINE_MAX], filled: 0 })
    }

    /// Sends a line.
    pub(crate) async fn send(&self, line: &str) -> io::Result<()> {
        let bytes = format!("{line}\n").into_bytes();
        let mut left = &bytes[..];
        while !left.is_empty() {
            self.stream.writable().await?;
            match self.stream.try_write(left) {
                Ok(n) => left = &left[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next line; `None` at the end of the conversation.
    pub(crate) async fn receive(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.buffer[..self.filled].iter().position(|b| *b == b'\n') {
                let line = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                self.buffer.copy_within(end + 1..self.filled, 0);
                self.filled -= end + 1;
                return Ok(Some(line));
            }
            if self.filled == LINE_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long"));
            }
            self.stream.readable().await?;
            match self.stream.try_read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Ok(None),
                Ok(n) => self.filled += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether nothing has come that nobody asked for, the end included. Asks
    /// the system only if something has.
    pub(crate) fn is_quiet(&self) -> bool {
        let read = self.stream.try_read(&mut [0; 1]);
        self.filled == 0 && read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Says that nothing more will be sent, and reads until the other end has
    /// closed too. `false` if that was not seen.
    pub(crate) async fn finish(mut self) -> bool {
        if SockRef::from(&*self.stream).shutdown(Shutdown::Write).is_err() {
            return false;
        }
        loop {
            match self.receive().await {
                Ok(Some(_)) => {} // an answer that nobody waits for any more
                Ok(None) => return true,
                Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
            }
        }
    }

    /// Shuts the socket down from anywhere, as long as the connection exists.
    pub(crate) fn killer(&self) -> impl Fn() + Send + Sync + 'static {
        let stream = Arc::downgrade(&self.stream);
        move || {
            if let Some(stream) = stream.upgrade() {
                // fails only if it is shut down already
                let _ = SockRef::from(&*stream).shutdown(Shutdown::Both);
            }
        }
    }
}
