//! Messages as lines of JSON, and their limits.

use serde::{Serialize, de::DeserializeOwned};

/// The longest line in bytes, with its end. A connection with a longer one is closed, so a
/// stranger makes no rank allocate more.
pub const LONGEST: usize = 16 * 1024;

/// The longest text of a program within a message in bytes: of a path, or of the reason of an
/// abort. JSON writes a byte in at most six, and a failure has two texts.
pub(crate) const LONGEST_TEXT: usize = 1024;

/// Returns a message as a line, with its end.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("messages have no maps and no failing parts");
    line.push(b'\n');
    line
}

/// Returns the message of a line without its end.
///
/// # Errors
/// If the line is not such a message. The text says what is wrong, and where.
pub fn decode<M: DeserializeOwned>(line: &[u8]) -> Result<M, String> {
    serde_json::from_slice(line).map_err(|error| error.to_string())
}

/// The bytes of a connection, cut into lines.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
    /// The bytes of lines that were returned.
    taken: usize,
    /// The bytes that are known to have no further end of a line.
    searched: usize,
}

impl Lines {
    /// Takes bytes as they arrive. Take all complete lines before the next ones.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.searched -= self.taken;
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete line, without its end.
    ///
    /// # Errors
    /// If the line is longer than [`LONGEST`]. The connection is of no use any more.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, String> {
        let start = self.taken;
        let end = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let end = end.map(|end| self.searched + end);
        let length = end.unwrap_or(self.bytes.len()) - start;
        if length >= LONGEST {
            return Err(format!("a message has {length} bytes or more, and the limit is {}", LONGEST - 1));
        }
        let Some(end) = end else {
            self.searched = self.bytes.len();
            return Ok(None);
        };
        (self.taken, self.searched) = (end + 1, end + 1);
        Ok(Some(&self.bytes[start..end]))
    }
}

/// Returns the beginning of a text that is too long for a message.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > LONGEST_TEXT {
        let ends = (0..=LONGEST_TEXT - '…'.len_utf8()).rev();
        text.truncate(ends.into_iter().find(|end| text.is_char_boundary(*end)).unwrap_or(0));
        text.push('…');
    }
    text
}
