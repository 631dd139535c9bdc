//! Fuzzes the parser of PTX: no text panics it, an error names a place of the text, and blanks at
//! the end of a text change nothing.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warpline_ptx::text::parse;

fuzz_target!(|text: &str| {
    let result = parse(text);
    if let Err(error) = &result {
        let line = text.split('\n').nth(error.line as usize - 1).expect("a line of the text");
        assert!(error.column as usize <= line.chars().count() + 1, "{error}");
        assert!(error.to_string().contains(" was expected"), "{error}");
    }
    if let Ok(module) = &result {
        assert_eq!(parse(&format!("{text}\n// the end")).as_ref(), Ok(module));
    }
});
