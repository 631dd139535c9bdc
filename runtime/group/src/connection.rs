//! Lines on a connection: tasks that read and write them.

use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use warpline_ranks::{Lines, Rank};

/// The messages that wait for a connection. The hub sends a few for each call that a rank makes,
/// and a rank that takes none makes no calls that others could agree with.
const QUEUE: usize = 16 * 1024;

/// One event of a connection to another rank.
pub(crate) struct Incoming {
    pub(crate) rank: Rank,
    /// A line, or the reason why there are no more.
    pub(crate) line: Result<Vec<u8>, String>,
}

/// A connection to another rank. Dropping it closes it immediately, and loses what is queued.
pub(crate) struct Connection {
    queue: Option<mpsc::Sender<Vec<u8>>>,
    reader: JoinHandle<()>,
    writer: JoinHandle<()>,
}

impl Connection {
    /// Starts the tasks of a connection. `read` has the bytes that have arrived already.
    pub(crate) fn start(
        stream: TcpStream,
        read: Lines,
        rank: Rank,
        events: mpsc::Sender<Incoming>,
    ) -> Connection {
        let (from, to) = stream.into_split();
        let (queue, messages) = mpsc::channel(QUEUE);
        let reader = tokio::spawn(read_lines(from, read, rank, events));
        Connection { queue: Some(queue), reader, writer: tokio::spawn(write_lines(to, messages)) }
    }

    /// Returns whether the queue has room for a line.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.as_ref().is_none_or(|queue| queue.is_closed() || queue.capacity() > 0)
    }

    /// Queues a line. If the connection has ended the line is lost: an event says so, behind the
    /// last lines of the other side.
    ///
    /// # Errors
    /// If the queue is full.
    pub(crate) fn send(&self, line: Vec<u8>) -> Result<(), String> {
        let Some(queue) = &self.queue else { return Ok(()) };
        match queue.try_send(line) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(format!("it has not taken {QUEUE} messages")),
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
        }
    }

    /// Closes this side of the connection, once the queue is written. The other side then closes
    /// its own, which is an event.
    pub(crate) fn finish(&mut self) {
        self.queue = None;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
        self.writer.abort();
    }
}

/// Reads the next line, and returns `None` at the end of the connection.
pub(crate) async fn read_line(
    stream: &mut (impl tokio::io::AsyncRead + Unpin),
    lines: &mut Lines,
) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = [0; 4096];
    loop {
        if let Some(line) = lines.next_line().map_err(io::Error::other)? {
            return Ok(Some(line.to_vec()));
        }
        match stream.read(&mut bytes).await? {
            0 => return Ok(None),
            read => lines.push(&bytes[..read]),
        }
    }
}

async fn read_lines(mut from: OwnedReadHalf, mut lines: Lines, rank: Rank, events: mpsc::Sender<Incoming>) {
    loop {
        let line = match read_line(&mut from, &mut lines).await {
            Ok(Some(line)) => Ok(line),
            Ok(None) => Err("its connection has ended".into()),
            Err(error) => Err(format!("its connection has failed: {error}")),
        };
        let is_last = line.is_err();
        if events.send(Incoming { rank, line }).await.is_err() || is_last {
            return;
        }
    }
}

async fn write_lines(mut to: OwnedWriteHalf, mut messages: mpsc::Receiver<Vec<u8>>) {
    while let Some(mut bytes) = messages.recv().await {
        // Fewer, larger packets.
        while let Ok(more) = messages.try_recv() {
            bytes.extend_from_slice(&more);
        }
        // The reader reports that the connection has failed.
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
