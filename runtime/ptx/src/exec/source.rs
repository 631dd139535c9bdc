//! The lines of the source that instructions come from.

use std::fmt;

/// A line of the source, as the line information of the PTX has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The path of the file, as `.file` in the PTX gives it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The lines of the kernel's own file whose calls lead here, the innermost first. It has the
    /// calls that the compiler inlined alone.
    ///
    /// PTX does not tell two inlined calls of one function apart. If a compiler mixes their
    /// instructions, this may name the other call.
    pub called_at: Vec<(String, u32)>,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SourceLine { file, line, called_at } = self;
        write!(f, "{file}:{line}")?;
        called_at.iter().try_for_each(|(file, line)| write!(f, ", called at {file}:{line}"))
    }
}

/// Writes a line of the PTX with that of the source, if it is known.
pub(super) fn write_line(
    f: &mut fmt::Formatter<'_>,
    ptx_line: u32,
    source: Option<&SourceLine>,
) -> fmt::Result {
    match source {
        Some(source) => write!(f, "{source}, PTX line {ptx_line}"),
        None => write!(f, "PTX line {ptx_line}"),
    }
}

/// A line of a source file by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct NumberedLine {
    pub(crate) file: u32,
    pub(crate) line: u32,
}

/// The source files of a kernel, and the inlined calls.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// The names of the files, by their numbers.
    pub(crate) files: Vec<(u32, String)>,
    /// The calls that lead to a line, the innermost first. A [`Line`](super::code::Line) has the
    /// place of its list here.
    pub(crate) calls: Vec<Vec<NumberedLine>>,
}

impl Sources {
    /// Describes a line, if it is known, with one of the lists of calls.
    pub(super) fn describe(&self, line: NumberedLine, calls: u32) -> Option<SourceLine> {
        let named = |NumberedLine { file, line }: NumberedLine| {
            let (_, name) = self.files.iter().find(|(number, _)| *number == file && line > 0)?;
            Some((name.clone(), line))
        };
        let (file, line) = named(line)?;
        let calls = self.calls.get(calls as usize).into_iter().flatten();
        Some(SourceLine { file, line, called_at: calls.copied().filter_map(named).collect() })
    }
}
