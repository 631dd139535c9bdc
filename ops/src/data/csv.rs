//! A CSV file, compressed or not, as a dataset.

use super::dataset::{Rows, SequentialDataset};
use crate::Shape;
use csv::{ByteRecord, ReaderBuilder, Terminator};
use flate2::bufread::MultiGzDecoder;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Chain, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use warpline_runtime::{Error, ErrorKind, Result};

/// The first bytes of a gzip file (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A line end that is read after the file, whose last line may have none.
///
/// So each row is one line with its end. When a row has been read, the last line that the reader
/// has counted is that row's, from which errors take the line number. One more blank line is
/// skipped like any other.
const LAST_LINE_END: &[u8] = b"\n";

type KeepRow = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// A file of comma-separated numbers without a header, one row per line.
///
/// Needs the feature `csv`. A file that begins with gzip's magic number is decompressed. Lines end
/// with `\n` or `\r\n`, and blank lines are skipped. Numbers may be in double quotes.
///
/// # Examples
/// The training part of a file of handwritten digits: four of every five rows, each with 64 pixels
/// from 0 to 16 and a digit.
/// ```no_run
/// # use warpline::ops::data::Csv;
/// let train = Csv::new("digits.csv.gz", 65)
///     .classes(10)
///     .scale(1.0 / 16.0)
///     .keep(|row| row % 5 != 0);
/// ```
#[derive(Clone)]
pub struct Csv {
    path: PathBuf,
    columns: usize,
    label: usize,
    labels: Option<Range<i64>>,
    scale: f32,
    keep: Option<KeepRow>,
}

impl Csv {
    /// Describes the file at `path`, which has `columns` columns.
    ///
    /// The last column is the label, and the others are the features.
    pub fn new(path: impl Into<PathBuf>, columns: usize) -> Self {
        Csv {
            path: path.into(),
            columns,
            label: columns.saturating_sub(1),
            labels: None,
            scale: 1.0,
            keep: None,
        }
    }

    /// Sets the column of the label. The first column is 0.
    pub fn label_column(mut self, column: usize) -> Self {
        self.label = column;
        self
    }

    /// Accepts only labels from 0 to `classes` - 1; any other label is an error. By default, any
    /// integer is a label.
    pub fn classes(mut self, classes: u32) -> Self {
        self.labels = Some(0..i64::from(classes));
        self
    }

    /// Multiplies every feature by `scale`; 1 by default.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = scale;
        self
    }

    /// Keeps only the rows for which `keep` returns `true`. Its argument is the index of a row.
    ///
    /// The file's first row has index 0. Rows that are not kept are not parsed. For a split that is
    /// the same in every run, use `keep(|row| row % 5 != 0)` to train and
    /// `keep(|row| row % 5 == 0)` to test.
    pub fn keep(mut self, keep: impl Fn(u64) -> bool + Send + Sync + 'static) -> Self {
        self.keep = Some(Arc::new(keep));
        self
    }
}

impl SequentialDataset for Csv {
    type Sample = (f32, i64);

    fn shapes(&self) -> [Shape; 2] {
        [[self.columns.saturating_sub(1)].into(), [].into()]
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn open(&self) -> Result<Box<dyn Rows<(f32, i64)>>> {
        let path = self.path.display();
        if self.label >= self.columns {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{path}: the label is in column {} of {}; columns count from 0",
                    self.label, self.columns
                ),
            ));
        }
        if self.labels.as_ref().is_some_and(Range::is_empty) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{path}: classes is 0, and at least 1 is needed; omit the call to accept any \
                     integer as a label"
                ),
            ));
        }
        let opened = decoded(&self.path).map_err(|error| {
            Error::new(ErrorKind::Data, format!("cannot open {path}: {error}; check the path"))
        })?;
        // The reader accepts rows of any length, since our own error message says which numbers
        // differ.
        let csv = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .quoting(false)
            .terminator(Terminator::Any(b'\n'))
            .from_reader(opened.chain(LAST_LINE_END));
        Ok(Box::new(CsvRows { of: self.clone(), csv, record: ByteRecord::new(), next: 0 }))
    }
}

impl fmt::Debug for Csv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Csv")
            .field("path", &self.path)
            .field("columns", &self.columns)
            .finish_non_exhaustive()
    }
}

fn decoded(path: &Path) -> io::Result<Box<dyn Read + Send>> {
    let mut file = BufReader::new(File::open(path)?);
    if file.fill_buf()?.starts_with(&GZIP) {
        return Ok(Box::new(MultiGzDecoder::new(file)));
    }
    Ok(Box::new(file))
}

struct CsvRows {
    of: Csv,
    csv: csv::Reader<Chain<Box<dyn Read + Send>, &'static [u8]>>,
    record: ByteRecord,
    /// The index of the next row to read.
    next: u64,
}

impl Rows<(f32, i64)> for CsvRows {
    fn next_row(&mut self, (features, label): (&mut [f32], &mut [i64])) -> Result<bool> {
        loop {
            let more = self.csv.read_byte_record(&mut self.record).map_err(|error| {
                let line = self.csv.position().line();
                self.error(line, format!("{error}; the file is cut short or damaged, fetch it again"))
            })?;
            if !more {
                return Ok(false);
            }
            // The reader skips empty lines. This line ends with \r\n or has blanks in it.
            if self.record.len() == 1 && self.record[0].trim_ascii().is_empty() {
                continue;
            }
            let index = self.next;
            self.next += 1;
            if self.of.keep.as_ref().is_none_or(|keep| keep(index)) {
                label[0] = self.parse(features)?;
                return Ok(true);
            }
        }
    }
}

impl CsvRows {
    fn parse(&self, features: &mut [f32]) -> Result<i64> {
        let Csv { columns, label: label_column, scale, .. } = self.of;
        let wrong = |why: String| self.error(self.csv.position().line() - 1, why);
        let found = self.record.len();
        if found != columns {
            return Err(wrong(format!("{found} columns, expected {columns}; correct the row")));
        }
        let mut label = 0;
        let mut to = features.iter_mut();
        for (column, field) in self.record.iter().enumerate() {
            let field = field.trim_ascii();
            let field =
                field.strip_prefix(b"\"").and_then(|field| field.strip_suffix(b"\"")).unwrap_or(field);
            let text = str::from_utf8(field).unwrap_or_default().trim();
            let not = |what: &str| {
                wrong(format!(
                    "column {} of {columns} is \"{}\", expected {what}; correct the row",
                    column + 1,
                    field.escape_ascii()
                ))
            };
            if column == label_column {
                label = text.parse().map_err(|_| not("an integer label"))?;
                if let Some(labels) = self.of.labels.as_ref().filter(|labels| !labels.contains(&label)) {
                    return Err(wrong(format!(
                        "label {label} in column {}, expected {} to {}; correct the row or the \
                         number of classes",
                        column + 1,
                        labels.start,
                        labels.end - 1
                    )));
                }
            } else if let Some(to) = to.next() {
                let number = text.parse().ok().filter(|number: &f32| number.is_finite());
                *to = number.ok_or_else(|| not("a finite number"))? * scale;
            }
        }
        Ok(label)
    }

    fn error(&self, line: u64, why: String) -> Error {
        Error::new(ErrorKind::Data, format!("{}:{line}: {why}", self.of.path.display()))
    }
}
