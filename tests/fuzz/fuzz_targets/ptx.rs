//! Fuzzes the readers of PTX text and of CUDA C++: no text panics them, and a well-formed entry is
//! read as it was written.

#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use warpline::kernels;
use warpline_driver::kernel::{difference_in_ptx, entry_params, head};

/// A parameter of an entry, as PTX text and with its size.
#[derive(Debug)]
struct Param {
    text: String,
    bytes: usize,
}

impl<'a> Arbitrary<'a> for Param {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let scalars =
            [("u8", 1), ("s16", 2), ("f16", 2), ("u32", 4), ("f32", 4), ("b64", 8), ("f64", 8), ("u64", 8)];
        let (kind, size) = *u.choose(&scalars)?;
        let align = *u.choose(&["", " .align 8", " .align 16"])?;
        let pointer = if size == 8 && u.arbitrary()? { " .ptr .global .align 4" } else { "" };
        let len = u.int_in_range(0..=3)?;
        let array = if len > 0 { format!("[{len}]") } else { String::new() };
        let text = format!(".param{align} .{kind}{pointer} p{array}");
        Ok(Param { text, bytes: size * len.max(1) })
    }
}

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    params: Vec<Param>,
    /// Selects the space between tokens.
    spaces: [u8; 4],
    text: &'a str,
}

impl Input<'_> {
    fn entry(&self) -> String {
        let space = |at: usize| [" ", "\n", "\t ", " /* , ) .entry */ ", " // }\n"][self.spaces[at] as usize % 5];
        let params: Vec<&str> = self.params.iter().map(|param| param.text.as_str()).collect();
        format!(
            ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry{} k{}({}{}){{ ret; }}",
            space(0),
            space(1),
            params.join(&format!("{},{}", space(2), space(3))),
            space(2)
        )
    }
}

fuzz_target!(|input: Input<'_>| {
    let entry = input.entry();
    let sizes: Vec<usize> = input.params.iter().map(|param| param.bytes).collect();
    assert_eq!(entry_params(&entry, "k"), Some(sizes), "{entry}");
    assert_eq!(head(&entry).map(|head| head.version), Some((8, 0)), "{entry}");

    let _ = head(input.text);
    let _ = entry_params(input.text, "k");
    for kernel in kernels::ALL.iter().take(4) {
        let _ = difference_in_ptx(kernel, input.text);
        if input.text.contains(kernel.name) {
            let _ = entry_params(input.text, kernel.name);
        }
    }
    // A text before an entry of another name does not change how the entry is read, unless the text
    // has an entry of this name or opens a comment.
    if !input.text.contains(".entry") && !input.text.contains('/') {
        let both = format!("{}\n{entry}", input.text);
        assert_eq!(entry_params(&both, "k"), entry_params(&entry, "k"), "{both}");
    }
});
