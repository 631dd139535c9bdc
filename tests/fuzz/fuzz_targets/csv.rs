//! Fuzzes the CSV reader: no file panics it, every error is of the file and names a line, and rows
//! are read as they were written, compressed or not.

#![no_main]

use flate2::Compression;
use flate2::write::GzEncoder;
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use warpline::ErrorKind;
use warpline::ops::data::{Csv, SequentialDataset as _};

const COLUMNS: usize = 3;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    rows: Vec<([i16; COLUMNS - 1], i64)>,
    windows: bool,
    quotes: bool,
    blank_lines: bool,
    end_of_last_line: bool,
    compressed: bool,
    bytes: &'a [u8],
}

impl Input<'_> {
    fn text(&self) -> String {
        let end = if self.windows { "\r\n" } else { "\n" };
        let quote = if self.quotes { "\"" } else { "" };
        let mut text = String::new();
        for (features, label) in &self.rows {
            for feature in features {
                text += &format!("{quote}{}{quote},", f32::from(*feature) / 8.0);
            }
            text += &format!("{label}{end}");
            if self.blank_lines {
                text += end;
            }
        }
        if !self.end_of_last_line {
            text.truncate(text.trim_end().len());
        }
        text
    }
}

/// The file that every input is written to.
static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("warpline-fuzz-{}.csv", std::process::id())));

fn write(bytes: &[u8], compressed: bool) -> &'static Path {
    let bytes = if compressed {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).expect("memory takes it");
        encoder.finish().expect("memory takes it")
    } else {
        bytes.to_vec()
    };
    std::fs::write(&*FILE, bytes).expect("the temporary folder takes a file");
    &FILE
}

/// Reads rows until the end or the first error.
fn read(path: &Path) -> (Vec<([f32; COLUMNS - 1], i64)>, Option<warpline::Error>) {
    let mut read = Vec::new();
    let mut rows = match Csv::new(path, COLUMNS).open() {
        Ok(rows) => rows,
        Err(error) => return (read, Some(error)),
    };
    loop {
        let (mut features, mut label) = ([0.0; COLUMNS - 1], [0]);
        match rows.next_row((&mut features, &mut label)) {
            Ok(true) => read.push((features, label[0])),
            Ok(false) => return (read, None),
            Err(error) => return (read, Some(error)),
        }
    }
}

fuzz_target!(|input: Input<'_>| {
    let text = input.text();
    let (rows, error) = read(write(text.as_bytes(), input.compressed));
    assert!(error.is_none(), "{error:?} of {text:?}");
    let expected: Vec<_> = input
        .rows
        .iter()
        .map(|(features, label)| (features.map(|feature| f32::from(feature) / 8.0), *label))
        .collect();
    assert_eq!(rows, expected, "{text:?}");

    let path = write(input.bytes, false);
    let (rows, error) = read(path);
    if let Some(error) = error {
        assert_eq!(error.kind(), ErrorKind::Data, "{error}");
        let text = error.to_string();
        let line = text.strip_prefix(&format!("{}:", path.display())).and_then(|rest| rest.split(':').next());
        let line: u64 = line.and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("no line in {text}"));
        assert!(line >= 1 && line > rows.len() as u64, "line {line} after {} rows: {text}", rows.len());
    }
});
