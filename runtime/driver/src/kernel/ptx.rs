//! Reads PTX text: the parameters of its kernels, and the drivers and devices that it is for.
//!
//! It reads enough of the grammar for the heads of a module and of an entry: PTX ISA 8.0, "PTX
//! Module Directives", "Kernel Function Parameters" and ".entry".
use std::fmt;

/// The directives at the top of a PTX text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Major and minor number of the text's PTX ISA version.
    pub version: (u32, u32),
    pub target: Target,
}

/// The GPU architecture of a PTX text: `sm_70`, or `sm_90a` and `sm_100f`, which run on fewer
/// devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The 9 of a compute capability 9.0.
    pub major: u32,
    /// The 0 of a compute capability 9.0.
    pub minor: u32,
    suffix: Option<char>,
}
impl Target {
    fn parse(word: &str) -> Option<Self> {
        let number = word.strip_prefix("sm_")?;
        let suffix = number.chars().last().filter(|last| matches!(last, 'a' | 'f'));
        let number: u32 = number.strip_suffix(['a', 'f']).unwrap_or(number).parse().ok()?;
        Some(Target { major: number / 10, minor: number % 10, suffix })
    }

    /// Returns true if a device of this compute capability runs the text.
    ///
    /// PTX ISA, ".target": text for an architecture runs on all later ones, text with `a` on that
    /// one alone, and text with `f` on those of its family.
    pub fn runs_on(self, (major, minor): (u32, u32)) -> bool {
        match self.suffix {
            Some('a') => (self.major, self.minor) == (major, minor),
            Some(_) => self.major == major && self.minor <= minor,
            None => (self.major, self.minor) <= (major, minor),
        }
    }
}
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major * 10 + self.minor, self.suffix.map_or(String::new(), String::from))
    }
}

/// Returns the head of a PTX text, or `None` if this function cannot read it.
pub fn head(ptx: &str) -> Option<Head> {
    let text = without_comments(ptx);
    let mut words = text.split_whitespace();
    let mut behind = |directive| words.find(|word| *word == directive).and_then(|_| words.next());
    let (major, minor) = behind(".version")?.split_once('.')?;
    let target = Target::parse(behind(".target")?.trim_end_matches(','))?;
    Some(Head { version: (major.parse().ok()?, minor.parse().ok()?), target })
}

/// Returns the sizes in bytes of the parameters of the entry `name`, in order. Returns `None` if
/// `ptx` has no such entry, or if this function cannot read it. A pointer is 8 bytes, like every
/// other 64-bit type.
///
/// # Examples
/// ```
/// use warpline::kernel::entry_params;
///
/// let ptx = ".visible .entry fill(.param .u64 n, .param .f32 value, \
///            .param .u64 .ptr .global .align 4 y) { ret; }";
/// assert_eq!(entry_params(ptx, "fill"), Some(vec![8, 4, 8]));
/// assert_eq!(entry_params(ptx, "copy"), None);
/// ```
pub fn entry_params(ptx: &str, name: &str) -> Option<Vec<usize>> {
    let text = without_comments(ptx);
    let mut tokens = entries(&text).find_map(|mut tokens| (tokens.next()? == name).then_some(tokens))?;
    // An entry without parameters may leave out the parentheses.
    if tokens.next()? != "(" {
        return Some(Vec::new());
    }
    let mut sizes = Vec::new();
    loop {
        match tokens.next()? {
            ")" => return Some(sizes),
            "," => {}
            ".param" => sizes.push(parameter(&mut tokens)?),
            _ => return None,
        }
    }
}

/// Returns the names of all entries, in order.
pub(super) fn entry_names(ptx: &str) -> Vec<String> {
    entries(&without_comments(ptx)).filter_map(|mut tokens| tokens.next().map(str::to_owned)).collect()
}

/// Returns the text after each `.entry` of a text without comments, from the entry's name on.
fn entries(text: &str) -> impl Iterator<Item = Tokens<'_>> {
    let behind = text.match_indices(".entry").map(|(at, word)| &text[at + word.len()..]);
    behind.filter(|rest| rest.starts_with(char::is_whitespace)).map(Tokens)
}

/// Returns the size of the parameter whose `.param` has been read. Reads up to and including its
/// name and the sizes of its array.
fn parameter(tokens: &mut Tokens<'_>) -> Option<usize> {
    let mut bytes = None;
    loop {
        match tokens.next()? {
            // The properties of a pointer's target do not matter: `.ptr .global .align 16`. An
            // alignment is a number.
            ".ptr" | ".global" | ".shared" | ".const" | ".local" => {}
            ".align" => _ = tokens.number()?,
            word if word.starts_with('.') => bytes = Some(size_of_type(word)?),
            _name => break,
        }
    }
    let mut bytes = bytes?;
    while tokens.peek() == Some("[") {
        tokens.next();
        bytes = tokens.number()?.checked_mul(bytes)?;
        if tokens.next()? != "]" {
            return None;
        }
    }
    Some(bytes)
}

fn size_of_type(word: &str) -> Option<usize> {
    let bits =
        word.strip_prefix(".bf").or_else(|| word.strip_prefix(['.']).and_then(|word| word.get(1..)))?;
    match bits {
        "8" => Some(1),
        "16" => Some(2),
        "32" | "16x2" => Some(4),
        "64" => Some(8),
        "128" => Some(16),
        _ => None,
    }
}

/// Returns `ptx` with each comment replaced by a space.
fn without_comments(ptx: &str) -> String {
    let mut text = String::with_capacity(ptx.len());
    let mut rest = ptx;
    while let Some(at) = rest.find('/') {
        let (before, comment) = rest.split_at(at);
        text.push_str(before);
        rest = if let Some(line) = comment.strip_prefix("//") {
            line.find('\n').map_or("", |end| &line[end..])
        } else if let Some(block) = comment.strip_prefix("/*") {
            block.find("*/").map_or("", |end| &block[end + 2..])
        } else {
            &comment[1..]
        };
        text.push(' ');
    }
    text.push_str(rest);
    text
}

/// Words and single signs.
struct Tokens<'a>(&'a str);

impl<'a> Tokens<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let token = self.peek()?;
        self.0 = &self.0.trim_start()[token.len()..];
        Some(token)
    }

    fn peek(&self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let first = text.chars().next()?;
        let in_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
        let rest = &text[first.len_utf8()..];
        if in_word(first) || first == '.' {
            return Some(&text[..first.len_utf8() + rest.find(|c| !in_word(c)).unwrap_or(rest.len())]);
        }
        Some(&text[..first.len_utf8()])
    }

    fn number(&mut self) -> Option<usize> {
        self.next()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{Head, Target, head};
    use super::{entry_names, entry_params};

    /// PTX as NVRTC writes it.
    const TWO: &str = "
//
// Generated by NVIDIA NVVM Compiler
//

.version 8.1
.target sm_70
.address_size 64

	// .globl	axpy
.global .align 4 .u32 entry = 32;

.visible .entry axpy(
	.param .u64 axpy_param_0,
	.param .f32 axpy_param_1,
	.param .u64 axpy_param_2,
	.param .u64 axpy_param_3
)
.maxntid 1024, 1, 1
{
	.reg .pred 	%p<6>;
	ld.param.u64 	%rd1, [axpy_param_0];
	ret;
}
	// .globl	axpy_
.visible .entry axpy_(
	.param .u32 axpy__param_0
) { ret; }
";

    #[test]
    fn each_entry_has_its_own_parameters() {
        assert_eq!(entry_params(TWO, "axpy"), Some(vec![8, 4, 8, 8]));
        assert_eq!(entry_params(TWO, "axpy_"), Some(vec![4]));
        assert_eq!(entry_params(TWO, "axp"), None);
        assert_eq!(entry_params(TWO, "entry"), None);
        assert_eq!(entry_params("", "axpy"), None);
        assert_eq!(entry_names(TWO), ["axpy", "axpy_"]);
        assert_eq!(entry_names(".entryway k() // .entry l()"), [""; 0]);
    }

    #[test]
    fn every_type_has_its_size() {
        for (kind, bytes) in [
            (".b8", 1),
            (".s8", 1),
            (".u16", 2),
            (".f16", 2),
            (".bf16", 2),
            (".f16x2", 4),
            (".s32", 4),
            (".b64", 8),
            (".f64", 8),
            (".b128", 16),
        ] {
            let ptx = format!(".entry k(.param {kind} x)");
            assert_eq!(entry_params(&ptx, "k"), Some(vec![bytes]), "{kind}");
        }
    }

    #[test]
    fn arrays_alignments_and_attributes_of_pointers_are_read() {
        let ptx =
            ".weak .entry k (.param .align 8 .b8 x[16], .param .align 4 .b32 y[2][3] ,.param .b64 z[ 2 ],
            .param .u64 .ptr .global .align 16 p, .param .u32 .ptr .shared q)";
        assert_eq!(entry_params(ptx, "k"), Some(vec![16, 24, 16, 8, 4]));
    }

    #[test]
    fn comments_are_passed_over() {
        let ptx = "// .entry k(.param .u64 x)\n/* .entry k(\n.param .u32 x) */ .entry /* here */ k( // )\n.param .u16 /*,*/ x)";
        assert_eq!(entry_params(ptx, "k"), Some(vec![2]));
        assert_eq!(entry_params("// .entry k(.param .u64 x)", "k"), None);
        assert_eq!(entry_params("/* .entry k(.param .u64 x)", "k"), None);
    }

    #[test]
    fn an_entry_without_parameters_has_none() {
        assert_eq!(entry_params(".entry k() { ret; }", "k"), Some(vec![]));
        assert_eq!(entry_params(".entry k { ret; }", "k"), Some(vec![]));
    }

    #[test]
    fn what_cannot_be_read_is_no_answer() {
        for head in [
            "(.param .u64 x",
            "(.param .u64",
            "(.reg .u64 x)",
            "(.param x)",
            "(.param .texref x)",
            "(.param .b8 x[)",
            "(.param .b8 x[2)",
            "(.param .align x)",
            "(.param .u64 x[18446744073709551615])",
            "(.param .ü x)",
        ] {
            assert_eq!(entry_params(&format!(".entry k{head}"), "k"), None, "{head}");
        }
    }
    #[test]
    fn the_head_of_a_text_says_its_version_and_target() {
        let at_the_top = "//\n// .version 1.0\n.version 8.0\n.target sm_70\n.address_size 64\n";
        let target = |text| Target::parse(text).unwrap();
        assert_eq!(head(at_the_top), Some(Head { version: (8, 0), target: target("sm_70") }));
        assert_eq!(head(".version 8.7\n.target sm_100f, debug\n").unwrap().target.to_string(), "sm_100f");
        assert_eq!(["", ".version 8.0", ".version 8\n.target sm_70"].map(head), [None; 3]);
    }
    #[test]
    fn text_for_an_architecture_runs_on_that_one_and_later_ones() {
        let runs = |text: &str, capability| Target::parse(text).unwrap().runs_on(capability);
        assert!(runs("sm_60", (6, 1)) && runs("sm_70", (12, 0)) && !runs("sm_70", (6, 1)));
        assert!(runs("sm_90a", (9, 0)) && !runs("sm_90a", (10, 0)));
        assert!(runs("sm_100f", (10, 3)) && !runs("sm_100f", (12, 0)));
    }
}
