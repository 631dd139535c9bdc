//! CSV files as datasets: the values of the digits, and the errors of bad files.

use crate::support::{block_on, says, streams};
use flate2::{Compression, write::GzEncoder};
use futures::TryStreamExt as _;
use std::io::Write as _;
use std::path::PathBuf;
use warpline::ops::data::{Csv, SequentialDataset as _};
use warpline::prelude::*;

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/digits.csv.gz");

#[test]
fn the_digits_split_into_what_they_are() {
    let (_runtime, _, [copy, compute]) = streams(["copy", "compute"]);
    let rows = |keep: fn(u64) -> bool| {
        let digits = Csv::new(DIGITS, 65).classes(10).scale(1.0 / 16.0).keep(keep);
        let mut batches = Loader::sequential(digits).batch_size(100).on(&copy).build().unwrap();
        let (mut x, mut labels) = (Vec::new(), Vec::new());
        block_on(async {
            while let Some(batch) = batches.try_next().await.unwrap() {
                compute.wait_event(&batch.copied);
                let tensors = batch.tensors();
                assert_eq!(tensors.0.shape(), [batch.rows, 64]);
                x.extend(compute.enter(|| tensors.0.to_vec::<f32>()).await.unwrap());
                labels.extend(compute.enter(|| tensors.1.to_vec::<i64>()).await.unwrap());
            }
        });
        assert!(batches.stats().reading.as_nanos() > 0);
        (x, labels)
    };
    let (x, labels) = rows(|_| true);
    assert_eq!((x.len(), labels.len()), (1797 * 64, 1797));
    assert_eq!(labels[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(x[..5], [0.0, 0.0, 5.0 / 16.0, 13.0 / 16.0, 9.0 / 16.0]);
    assert!(x.iter().all(|x| (0.0..=1.0).contains(x)));
    let (train, test) = (rows(|row| row % 5 != 0).1, rows(|row| row % 5 == 0).1);
    assert_eq!((train.len(), test.len()), (1437, 360));
    assert_eq!(test[..4], [labels[0], labels[5], labels[10], labels[15]]);
}

/// A temporary file, which is removed when it is dropped.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("warpline-loader-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        TempFile(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// Returns the error of reading `bytes` as a file of three columns, the last one a digit.
fn error_of(name: &str, bytes: &[u8]) -> Error {
    let file = TempFile::new(name, bytes);
    let mut rows = Csv::new(&file.0, 3).classes(10).open().unwrap();
    loop {
        match rows.next_row((&mut [0.0; 2], &mut [0])) {
            Ok(true) => {}
            Ok(false) => panic!("{name} was read to its end"),
            Err(error) => break error,
        }
    }
}

#[test]
fn a_bad_file_is_named_with_its_line_and_what_is_wrong() {
    let missing = Loader::sequential(Csv::new("no-such-file.csv.gz", 3)).build().unwrap_err();
    says(&missing, ErrorKind::Data, &["cannot open no-such-file.csv.gz: No such file", "check the path"]);

    for (name, rows, text) in [
        ("short.csv", "1,2,3\n4,5\n", ":2: 2 columns, expected 3"),
        ("long.csv", "1,2,3\n\n4,5,6\n7,8,9,10\n", ":4: 4 columns, expected 3"),
        ("windows.csv", "1,2,3\r\n4,5,6\r\n7,x,9\r\n", ":3: column 2 of 3 is \"x\""),
        ("windows-short.csv", "1,2,3\r\n\r\n7,8\r\n", ":3: 2 columns, expected 3"),
        ("blanks.csv", "1,2,3\n\n\n\n7,8,x\n9,8,7\n", ":5: column 3 of 3 is \"x\""),
        ("windows-blanks.csv", "\r\n1,2,3\r\n\r\n \r\n7,8,x", ":5: column 3 of 3 is \"x\""),
        ("no-end.csv", "1,2,3\n4,5,6\n7,8,x", ":3: column 3 of 3 is \"x\""),
        ("quote.csv", "1,2,3\n4,\"5,6\n7,8,9\n", ":2: column 2 of 3 is \"\\\"5\""),
        ("word.csv", "1,2,3\n4,five,6\n", ":2: column 2 of 3 is \"five\", expected a finite number"),
        ("nan.csv", "NaN,2,3\n", ":1: column 1 of 3 is \"NaN\", expected a finite number"),
        ("half.csv", "1,2,3\n4,5,6\n7,8,1.5\n", ":3: column 3 of 3 is \"1.5\", expected an integer label"),
        ("ten.csv", "1,2,10\n", ":1: label 10 in column 3, expected 0 to 9"),
        ("minus.csv", "1,2,-1\n", ":1: label -1 in column 3, expected 0 to 9"),
    ] {
        says(&error_of(name, rows.as_bytes()), ErrorKind::Data, &[name, text]);
        // The same rows compressed, whatever the name says.
        says(&error_of(name, &gzip(rows.as_bytes())), ErrorKind::Data, &[name, text]);
    }
    says(&error_of("bytes.csv", b"1,\xff,3\n"), ErrorKind::Data, &[":1: column 2 of 3 is \"\\xff\""]);

    let rows: String = (0..5000).map(|row| format!("{row},{},{}\n", row * 7, row % 10)).collect();
    let whole = gzip(rows.as_bytes());
    let cut = error_of("cut.csv.gz", &whole[..whole.len() / 2]);
    says(&cut, ErrorKind::Data, &["cut.csv.gz:", "the file is cut short or damaged, fetch it again"]);
    let line: u64 = cut.to_string().split(':').nth(1).unwrap().parse().unwrap();
    assert!((1000..4000).contains(&line), "{cut}");
    let mut checksum = whole.clone();
    let at = checksum.len() - 8;
    checksum[at] ^= 1;
    says(&error_of("checksum.csv.gz", &checksum), ErrorKind::Data, &["checksum.csv.gz:", "damaged"]);
}

#[test]
fn labels_may_stand_in_any_column_and_be_any_integers() {
    let file = TempFile::new("first.csv", b"-7, 1.5 ,2e1\r\n\"8\",3, \"4\"\r\n");
    let mut rows = Csv::new(&file.0, 3).label_column(0).open().unwrap();
    let (mut x, mut label) = ([0.0; 2], [0]);
    for expected in [([1.5, 20.0], [-7]), ([3.0, 4.0], [8])] {
        assert!(rows.next_row((&mut x, &mut label)).unwrap());
        assert_eq!((x, label), expected);
    }
    assert!(!rows.next_row((&mut x, &mut label)).unwrap());
}

#[test]
fn a_file_without_a_row_to_keep_or_a_column_to_read_is_refused_when_the_loader_is_built() {
    let (_runtime, _, [copy]) = streams(["copy"]);
    let error = Loader::sequential(Csv::new(DIGITS, 1)).on(&copy).build().unwrap_err();
    let text = ["field 0 of ", "has the shape [0] and so 0 elements", "at least 1 is needed"];
    says(&error, ErrorKind::InvalidArgument, &text);
    let error = Loader::sequential(Csv::new(DIGITS, 65).keep(|_| false)).on(&copy).build().unwrap_err();
    says(&error, ErrorKind::Data, &["examples/data/digits.csv.gz has 0 rows, and at least 1 is needed"]);
    for (name, bytes) in
        [("empty.csv", vec![]), ("empty.csv.gz", gzip(b"")), ("blank.csv", b"\r\n\n \n".to_vec())]
    {
        let file = TempFile::new(name, &bytes);
        let error = Loader::sequential(Csv::new(&file.0, 3)).on(&copy).build().unwrap_err();
        says(&error, ErrorKind::Data, &[name, "has 0 rows"]);
    }
    let error = Loader::sequential(Csv::new(DIGITS, 65).label_column(65)).on(&copy).build().unwrap_err();
    says(&error, ErrorKind::InvalidArgument, &["digits.csv.gz", "column 65 of 65"]);
    let error = Loader::sequential(Csv::new(DIGITS, 65).classes(0)).on(&copy).build().unwrap_err();
    says(&error, ErrorKind::InvalidArgument, &["digits.csv.gz: classes is 0, and at least 1 is needed"]);
}
