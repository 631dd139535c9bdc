//! The functions of the CUDA runtime that kernels call: `vprintf` and `__assertfail`.
//!
//! Of an op, `a`, `b`, `c` and `e` are the offsets of the arguments in the frame, and `d` that of
//! the result or `u32::MAX`.

use super::context::Context;
use super::fault::FaultKind;
use super::memory::{Access, Element};
use super::op::{Flow, Op};
use super::registers::{Mask, for_each_lane};
use super::warp::Lanes;
use std::fmt::Write;
use std::sync::PoisonError;

/// The most bytes of a string that a kernel passes.
const MOST_TEXT: u64 = 4096;

/// Loads an argument of a call.
pub(super) fn argument<T: Element>(lanes: &Lanes, lane: usize, offset: u32) -> u64 {
    let address = lanes.local_of(lane) + lanes.frame + u64::from(offset);
    // SAFETY: load needs an aligned address in memory that is valid for reads: the lowering has
    // placed the argument in this lane's local memory, at a multiple of its size.
    unsafe { T::load(address) }.extended()
}

/// Loads bytes that a lane may read, up to `most` or until `ends`. Returns `None` if it may not
/// read one of them.
fn bytes(
    lanes: &Lanes,
    context: &Context<'_>,
    lane: usize,
    address: u64,
    most: u64,
    ends: impl Fn(u8) -> bool,
) -> Option<Vec<u8>> {
    let local = lanes.local_of(lane);
    let mut bytes = Vec::new();
    for at in address..address.checked_add(most)? {
        let is_local = local <= at && at < local + lanes.local_bytes;
        let distance = match is_local {
            true => 0,
            false => context.launch.regions.distance(at, at + 1, Access::Read)?,
        };
        // SAFETY: load needs memory that is valid for reads, which has just been checked.
        let byte = unsafe { u8::load(at.wrapping_add(distance)) };
        if ends(byte) {
            return Some(bytes);
        }
        bytes.push(byte);
    }
    Some(bytes)
}

fn text(lanes: &Lanes, context: &Context<'_>, lane: usize, address: u64) -> Option<String> {
    let bytes = bytes(lanes, context, lane, address, MOST_TEXT, |byte| byte == 0)?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// `vprintf`: a format and the arguments in local memory, each at a multiple of its size.
pub(crate) fn print(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let mut fault = None;
    for_each_lane(mask, |lane| {
        let format = argument::<u64>(lanes, lane, op.a);
        let arguments = argument::<u64>(lanes, lane, op.b);
        let printed = text(lanes, context, lane, format).map(|format| {
            let mut arguments = Arguments { lanes, context, lane, at: arguments };
            formatted(&format, &mut arguments)
        });
        let Some((printed, count)) = printed else {
            fault = fault.or(Some((lane, format)));
            return;
        };
        let mut output = context.launch.printed.lock().unwrap_or_else(PoisonError::into_inner);
        output.push_str(&printed);
        if op.d != u32::MAX {
            let address = lanes.local_of(lane) + lanes.frame + u64::from(op.d);
            // SAFETY: as in `argument`, for a write of the result.
            unsafe { (count as u32).store(address) };
        }
    });
    match fault {
        None => Flow::Next,
        Some((lane, address)) => {
            let kind = context.launch.regions.refusal(address, 1, Access::Read);
            lanes.fail(lane, kind)
        }
    }
}

/// `__assertfail`: message, file, line and function.
pub(crate) fn assert_failed(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let lane = mask.trailing_zeros() as usize;
    let string = |offset: u32| {
        let address = argument::<u64>(lanes, lane, offset);
        text(lanes, context, lane, address).unwrap_or_default()
    };
    let (message, file, function) = (string(op.a), string(op.b), string(op.e));
    let line = argument::<u32>(lanes, lane, op.c) as u32;
    lanes.fail(lane, FaultKind::Assert { message, function, file, line })
}

/// The arguments of `vprintf`.
struct Arguments<'a, 'b> {
    lanes: &'a Lanes,
    context: &'a Context<'b>,
    lane: usize,
    at: u64,
}

impl Arguments<'_, '_> {
    /// Returns the next argument, of `size` bytes. An argument that cannot be read is 0.
    fn next(&mut self, size: u64) -> u64 {
        let at = self.at.next_multiple_of(size);
        self.at = at + size;
        let found = bytes(self.lanes, self.context, self.lane, at, size, |_| false).unwrap_or_default();
        found.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }
}

/// Formats like C's `printf`. Returns the text and the number of conversions. CUDA C++ Programming
/// Guide, "Formatted Output".
fn formatted(format: &str, arguments: &mut Arguments<'_, '_>) -> (String, usize) {
    let mut output = String::new();
    let mut count = 0;
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        output.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            output.push('%');
            rest = after;
            continue;
        }
        let (spec, conversion, after) = Spec::of(rest, arguments);
        rest = after;
        count += 1;
        let size = if spec.bits == 64 { 8 } else { 4 };
        let body = match conversion {
            'd' | 'i' => {
                let unused = 64 - spec.bits;
                let value = (arguments.next(size) << unused) as i64 >> unused;
                spec.signed(value < 0, &spec.digits(value.unsigned_abs().to_string()))
            }
            'u' | 'x' | 'X' | 'o' => {
                let value = arguments.next(size) & u64::MAX >> (64 - spec.bits);
                match conversion {
                    'u' => spec.digits(value.to_string()),
                    'x' => spec.prefixed("0x", spec.digits(format!("{value:x}"))),
                    'X' => spec.prefixed("0X", spec.digits(format!("{value:X}"))),
                    _ => spec.prefixed("0", spec.digits(format!("{value:o}"))),
                }
            }
            'c' => char::from(arguments.next(4) as u8).to_string(),
            'p' => format!("{:#x}", arguments.next(8)),
            's' => {
                let address = arguments.next(8);
                let text = text(arguments.lanes, arguments.context, arguments.lane, address);
                let mut text = text.unwrap_or_else(|| "(null)".to_owned());
                if let Some(most) = spec.precision {
                    text = text.chars().take(most).collect();
                }
                text
            }
            'f' | 'F' | 'e' | 'E' | 'g' | 'G' | 'a' | 'A' => {
                spec.float(f64::from_bits(arguments.next(8)), conversion)
            }
            other => format!("%{other}"),
        };
        output.push_str(&spec.padded(body, matches!(conversion, 'c' | 's' | 'p')));
    }
    output.push_str(rest);
    (output, count)
}

/// The flags, the width and the precision of a conversion.
#[derive(Debug, Default)]
struct Spec {
    is_left: bool,
    has_plus: bool,
    has_space: bool,
    has_prefix: bool,
    has_zeros: bool,
    width: usize,
    precision: Option<usize>,
    /// The bits of an integer that are printed: all 64 with `l` and the like, 16 with `h`, and 8
    /// with `hh`. A smaller integer is passed as one of 32 bits, as in C.
    bits: u32,
}

impl Spec {
    /// The most characters that a width or a precision asks for.
    const MOST: usize = 1024;

    fn of<'a>(text: &'a str, arguments: &mut Arguments<'_, '_>) -> (Self, char, &'a str) {
        let mut spec = Spec { bits: 32, ..Spec::default() };
        let mut rest = text;
        while let Some(flag) = rest.chars().next().filter(|flag| "-+ #0".contains(*flag)) {
            match flag {
                '-' => spec.is_left = true,
                '+' => spec.has_plus = true,
                ' ' => spec.has_space = true,
                '#' => spec.has_prefix = true,
                _ => spec.has_zeros = true,
            }
            rest = &rest[1..];
        }
        let mut number = |rest: &mut &'a str| {
            if let Some(after) = rest.strip_prefix('*') {
                *rest = after;
                return (arguments.next(4) as usize).min(Self::MOST);
            }
            let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
            let (digits, after) = rest.split_at(end);
            *rest = after;
            digits.parse().unwrap_or(0usize).min(Self::MOST)
        };
        spec.width = number(&mut rest);
        if let Some(after) = rest.strip_prefix('.') {
            rest = after;
            spec.precision = Some(number(&mut rest));
        }
        while let Some(length) = rest.chars().next().filter(|length| "hlzjtLq".contains(*length)) {
            spec.bits = match (length, spec.bits) {
                ('h', 32) => 16,
                ('h', _) => 8,
                _ => 64,
            };
            rest = &rest[1..];
        }
        let mut letters = rest.chars();
        let conversion = letters.next().unwrap_or('%');
        (spec, conversion, letters.as_str())
    }

    fn digits(&self, digits: String) -> String {
        match self.precision {
            Some(least) => format!("{digits:0>least$}"),
            None => digits,
        }
    }

    fn signed(&self, is_negative: bool, digits: &str) -> String {
        let sign = match is_negative {
            true => "-",
            false if self.has_plus => "+",
            false if self.has_space => " ",
            false => "",
        };
        format!("{sign}{digits}")
    }

    fn prefixed(&self, prefix: &str, digits: String) -> String {
        if self.has_prefix { format!("{prefix}{digits}") } else { digits }
    }

    fn float(&self, value: f64, conversion: char) -> String {
        let digits = self.precision.unwrap_or(6);
        let size = value.abs();
        let text = if value.is_nan() {
            "nan".to_owned()
        } else if value.is_infinite() {
            "inf".to_owned()
        } else {
            match conversion.to_ascii_lowercase() {
                'f' => format!("{size:.digits$}"),
                'e' => exponential(size, digits),
                'g' => general(size, digits, self.has_prefix),
                _ => hexadecimal(size),
            }
        };
        let text = if conversion.is_ascii_uppercase() { text.to_ascii_uppercase() } else { text };
        self.signed(value.is_sign_negative() && !value.is_nan(), &text)
    }

    fn padded(&self, text: String, is_text: bool) -> String {
        let width = self.width;
        let missing = width.saturating_sub(text.chars().count());
        if missing == 0 || self.is_left {
            return format!("{text:<width$}");
        }
        if self.has_zeros && !is_text {
            let signs = text.find(|letter: char| !"+- ".contains(letter)).unwrap_or(0);
            let (sign, digits) = text.split_at(signs);
            return format!("{sign}{}{digits}", "0".repeat(missing));
        }
        format!("{text:>width$}")
    }
}

/// Formats like `%e`: the exponent has a sign and at least two digits.
fn exponential(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let exponent: i32 = exponent.parse().unwrap_or(0);
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        None => text,
    }
}

/// Formats like `%g`.
fn general(value: f64, digits: usize, keeps_zeros: bool) -> String {
    let digits = digits.max(1);
    let rounded = format!("{value:.*e}", digits - 1);
    let exponent: i32 = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let trimmed = |text: String| match text.contains('.') && !keeps_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    if exponent < -4 || exponent >= digits as i32 {
        let text = exponential(value, digits - 1);
        return match text.split_once('e') {
            Some((mantissa, exponent)) => format!("{}e{exponent}", trimmed(mantissa.to_owned())),
            None => text,
        };
    }
    let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
    trimmed(format!("{value:.decimals$}"))
}

/// Formats like `%a`.
fn hexadecimal(value: f64) -> String {
    let bits = value.to_bits();
    let (exponent, fraction) = ((bits >> 52) as i32 & 0x7ff, bits & ((1 << 52) - 1));
    let mut text = String::from(if exponent == 0 { "0x0" } else { "0x1" });
    if fraction != 0 {
        let digits = format!("{fraction:013x}");
        let _ = write!(text, ".{}", digits.trim_end_matches('0'));
    }
    let exponent = match (exponent, fraction) {
        (0, 0) => 0,
        (0, _) => -1022,
        (exponent, _) => exponent - 1023,
    };
    let _ = write!(text, "p{exponent:+}");
    text
}
