//! Sizes in bytes, formatted for people.

use std::fmt;

/// A number of bytes, formatted for people: `512 B`, `4.0 KiB`, `139 GiB`.
#[derive(Clone, Copy, Debug)]
pub struct ByteSize(pub usize);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].iter();
        let mut unit = units.next().unwrap_or(&"KiB");
        // 1023.95 would be printed as 1024.
        while value >= 1023.95 {
            let Some(next) = units.next() else { break };
            value /= 1024.0;
            unit = next;
        }
        if value >= 99.95 { write!(f, "{value:.0} {unit}") } else { write!(f, "{value:.1} {unit}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        let text = |bytes| ByteSize(bytes).to_string();
        assert_eq!(text(0), "0 B");
        assert_eq!(text(1023), "1023 B");
        assert_eq!(text(4096), "4.0 KiB");
        assert_eq!(text((1 << 20) - 1), "1.0 MiB");
        assert_eq!(text(3 << 29), "1.5 GiB");
        assert_eq!(text(139 << 30), "139 GiB");
    }
}
