//! Fuzzes the reader of module files: no bytes panic it, a refused file changes nothing, and an
//! accepted one is what the module then holds.

#![no_main]

use arbitrary::{Arbitrary, Unstructured};
use futures::executor::block_on;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use warpline::nn::{Linear, load_safetensors, to_safetensors};
use warpline::{Device, ErrorKind, Runtime};

/// A header made of valid parts, so that more than its syntax is tried.
#[derive(Arbitrary, Debug)]
struct Entry {
    name: Name,
    dtype: Type,
    shape: Vec<Size>,
    from: Size,
    to: Size,
}

#[derive(Arbitrary, Debug)]
enum Name {
    Weight,
    Bias,
    Metadata,
    Other(String),
}

#[derive(Arbitrary, Debug)]
enum Type {
    F32,
    F64,
    U8,
    Bool,
    F4,
}

/// Mostly the sizes of the module below.
#[derive(Arbitrary, Debug)]
enum Size {
    Two,
    Three,
    Eight,
    ThirtyTwo,
    Longest(u8),
    Any(u64),
}

impl Size {
    fn value(&self) -> u64 {
        match self {
            Size::Two => 2,
            Size::Three => 3,
            Size::Eight => 8,
            Size::ThirtyTwo => 32,
            Size::Longest(times) => (u64::MAX / 8).wrapping_mul(u64::from(*times)),
            Size::Any(size) => *size,
        }
    }
}

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    entries: Vec<Entry>,
    data: &'a [u8],
}

impl Input<'_> {
    fn file(&self) -> Vec<u8> {
        let entries = self.entries.iter().map(|entry| {
            let name = match &entry.name {
                Name::Weight => "weight",
                Name::Bias => "bias",
                Name::Metadata => "__metadata__",
                Name::Other(name) => name,
            };
            let dtype = match entry.dtype {
                Type::F32 => "F32",
                Type::F64 => "F64",
                Type::U8 => "U8",
                Type::Bool => "BOOL",
                Type::F4 => "F4",
            };
            let shape: Vec<u64> = entry.shape.iter().map(Size::value).collect();
            let (from, to) = (entry.from.value(), entry.to.value());
            format!(r#"{name:?}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{from},{to}]}}"#)
        });
        let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), self.data].concat()
    }
}

static DEVICE: LazyLock<(Runtime, Device)> = LazyLock::new(|| {
    let runtime = Runtime::builder().build().expect("the CPU device opens");
    let device = runtime.devices().remove(0);
    (runtime, device)
});

/// Loads `file` into a module of 3 inputs and 2 outputs.
fn load(file: &[u8]) {
    let net = Linear::new(3, 2, &DEVICE.1).expect("it is small");
    let before = block_on(to_safetensors(&net)).expect("it is small");
    let loaded = block_on(load_safetensors(&net, file));
    let after = block_on(to_safetensors(&net)).expect("it is small");
    if let Err(error) = loaded {
        let kind = error.kind();
        assert!(matches!(kind, ErrorKind::Data | ErrorKind::Shape | ErrorKind::DTypeMismatch), "{error}");
        assert!(error.to_string().len() < 10_000, "{error}");
        assert_eq!(after, before, "{error}");
    } else {
        // The data of a file that fits is 6 + 2 numbers in one order or the other.
        let data = |file: &[u8]| {
            let (weight, bias): (&[u8], &[u8]) = file[file.len() - 32..].split_at(24);
            let (first, last) = file[file.len() - 32..].split_at(8);
            [[weight, bias].concat(), [last, first].concat()]
        };
        let [same_order, other_order] = data(file);
        let now = data(&after);
        assert!(now.contains(&same_order) || now.contains(&other_order));
    }
}

// An even first byte means that the rest is a file, an odd one that a file is made from the rest.
fuzz_target!(|bytes: &[u8]| match bytes {
    [first, file @ ..] if first % 2 == 0 => load(file),
    [_, rest @ ..] => {
        if let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(rest)) {
            load(&input.file());
        }
    }
    [] => {}
});
