//! Compares CUDA C++ with the declaration of its kernel, as far as possible without a compiler.
//!
//! Called by `device_code.rs` at a kernel's first launch. On a machine without NVRTC nothing else
//! checks the text.
//!
//! # Rules
//! 1. Text that a compiler accepts and that fits the declaration is never refused. An include of
//!    other headers than CUDA's, a macro in the kernel's head, or a construct that this module
//!    does not read ends the comparison.
//! 2. Text without the kernel's name, or without the string "C", is refused: a macro would have to
//!    contain them too.
//! 3. If every possible head of the kernel can be read, one of them has to be `__global__` and
//!    `extern "C"`, and have the declared parameters: the same number, with pointers for slices and
//!    values for scalars. Sizes of values are compared where their types are keywords. Numbers
//!    behind pointers are compared where their type is known (`pointee`).

mod pointee;

use super::{Kernel, Param, ParamKind};
use pointee::Number;

/// Headers of CUDA that a text may include, which leave the kernel's head as it is.
const HEADERS: [&str; 9] = [
    "<cuda_fp16.h>",
    "<cuda_bf16.h>",
    "<cooperative_groups.h>",
    "<cooperative_groups/reduce.h>",
    "<mma.h>",
    "<math_constants.h>",
    "<cuda/std/cstdint>",
    "<cuda_pipeline.h>",
    "<stdint.h>",
];

/// Signs of names, includes or quotes that this module does not read: pasting, digraphs, trigraphs,
/// universal character names and raw strings.
const NOT_READ: [&str; 7] = ["##", "%:", "<%", "??", "\\u", "\\U", "R\""];
/// Words in a head that may express `__global__` in another way, or turn the head into something
/// else.
const NOT_READ_IN_HEADS: [&str; 6] =
    ["__attribute__", "__declspec", "__location__", "template", "typedef", "using"];

/// Returns how the kernel in this CUDA C++ differs from the declaration, and the remedy.
pub(super) fn difference_in_cuda(kernel: &Kernel, text: &str) -> Option<String> {
    let name = kernel.name;
    // A name of the form that a compiler gives to C++ functions.
    if name.starts_with("_Z") || NOT_READ.iter().any(|sign| text.contains(sign)) {
        return None;
    }
    // A backslash at the end of a line joins it with the next.
    let text = text.replace("\\\r\n", "").replace("\\\n", "");
    let code = Code::read(&text)?;
    let named_by_asm =
        text.contains("asm") && code.all().any(|token| token.text.contains(name) && token.is_text());
    if named_by_asm || code.directives.iter().any(|token| token.text.contains(name)) {
        return None;
    }
    if !code.tokens.iter().any(|token| token.is_word(name)) {
        return Some(code.without(name));
    }
    let not_of_c = || {
        Some(format!(
            "{name} is not extern \"C\" in its CUDA C++, so its name changes when it is compiled; \
             declare it extern \"C\""
        ))
    };
    if !code.all().any(|token| token.is_text() && token.text == "C") {
        return not_of_c();
    }
    let heads = code.heads_of(name)?;
    if heads.is_empty() {
        return Some(format!("{name} is not __global__ in its CUDA C++; declare it __global__"));
    }
    // There are several heads if the kernel is declared before it is defined, or if a condition
    // leaves out all but one.
    let mut of_c = heads.iter().filter(|head| head.is_of_c).map(|head| first_difference(kernel, head));
    let Some(first) = of_c.next() else { return not_of_c() };
    if of_c.any(|difference| difference.is_none()) { None } else { first }
}

fn first_difference(kernel: &Kernel, head: &Head<'_>) -> Option<String> {
    let (ours, theirs) = (kernel.params, &head.params[..]);
    if ours.len() != theirs.len() {
        return Some(format!(
            "it has {} parameters in the declaration and {} in its CUDA C++; make the two agree",
            ours.len(),
            theirs.len(),
        ));
    }
    let (at, (ours, theirs)) =
        ours.iter().zip(theirs).enumerate().find(|(_, (ours, theirs))| !theirs.passed.fits(ours))?;
    Some(format!(
        "parameter {} of {} is \"{ours}\" in the declaration and \"{}\" in its CUDA C++; make the \
         two agree",
        at + 1,
        kernel.params.len(),
        theirs.text.split_whitespace().collect::<Vec<_>>().join(" "),
    ))
}

/// A function's head: `extern "C" __global__ void name(params)`.
struct Head<'a> {
    is_of_c: bool,
    params: Vec<Parameter<'a>>,
}

struct Parameter<'a> {
    text: &'a str,
    passed: Passed,
}

/// The way in which an argument is passed.
#[derive(Clone, Copy)]
enum Passed {
    /// A pointer, with the type behind it if that is known.
    Pointer(Option<Number>),
    /// A value of this many bytes.
    Value(usize),
    /// A type with a name of its own, or one whose size is not known.
    Unknown,
}

impl Passed {
    fn fits(self, param: &Param) -> bool {
        match (self, param.kind) {
            (Passed::Unknown, _) => true,
            (Passed::Pointer(number), ParamKind::Slice { element, element_bytes, .. }) => {
                number.is_none_or(|number| number.fits(element, element_bytes))
            }
            (Passed::Value(size), ParamKind::Scalar { bytes, .. }) => size == bytes,
            _ => false,
        }
    }

    /// Reads the way from the tokens of a parameter of a text.
    fn of(tokens: &[Token<'_>], code: &Code<'_>) -> Self {
        if tokens.iter().any(|token| token.is_sign("*") || token.is_sign("[")) {
            return Passed::Pointer(Number::behind(tokens, |name| code.declares(name)));
        }
        let count = |word: &str| tokens.iter().filter(|token| token.is_word(word)).count();
        let has = |words: &[&str]| words.iter().any(|word| count(word) > 0);
        let mut others = tokens.iter().map(|token| token.text).filter(|word| !KEYWORDS.contains(word));
        // One of these is the parameter's name. An extension may change the type.
        let name = others.next().unwrap_or_default();
        match count("long") {
            _ if others.next().is_some() || name.starts_with('_') => Passed::Unknown,
            // Either 4 or 8 bytes, as on the host.
            1 => Passed::Unknown,
            2.. => Passed::Value(8),
            _ if has(&["double"]) => Passed::Value(8),
            _ if has(&["short"]) => Passed::Value(2),
            _ if has(&["char", "bool"]) => Passed::Value(1),
            _ if has(&["int", "unsigned", "signed", "float"]) => Passed::Value(4),
            _ => Passed::Unknown,
        }
    }
}

/// The words of a parameter of a builtin type, apart from its name.
const KEYWORDS: [&str; 12] = [
    "const",
    "volatile",
    "bool",
    "char",
    "signed",
    "unsigned",
    "short",
    "int",
    "long",
    "float",
    "double",
    "__grid_constant__",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    /// The text between double quotes.
    Text,
    /// A number, or the text between single quotes.
    Number,
    /// One character.
    Sign,
}

#[derive(Clone, Copy)]
struct Token<'a> {
    kind: Kind,
    text: &'a str,
    /// The position of its first byte.
    at: usize,
    line: usize,
}

impl Token<'_> {
    fn is_word(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.text == word
    }

    fn is_sign(&self, sign: &str) -> bool {
        self.kind == Kind::Sign && self.text == sign
    }

    fn is_text(&self) -> bool {
        self.kind == Kind::Text
    }
}

/// The tokens of a text, without its comments.
struct Code<'a> {
    text: &'a str,
    /// The tokens outside of directives, and the `#` of each directive.
    tokens: Vec<Token<'a>>,
    /// The tokens of all directives.
    directives: Vec<Token<'a>>,
    macros: Vec<&'a str>,
}

impl<'a> Code<'a> {
    /// Reads `text`. Returns `None` if it includes other text, or if one of its literals or
    /// comments does not end.
    fn read(text: &'a str) -> Option<Self> {
        let all = tokens(text)?;
        let mut code = Code { text, tokens: Vec::new(), directives: Vec::new(), macros: Vec::new() };
        for line in all.chunk_by(|one, next| one.line == next.line) {
            let [sign, directive @ ..] = line else { continue };
            if !sign.is_sign("#") {
                code.tokens.extend(line);
                continue;
            }
            match directive {
                [what, header @ ..] if ["include", "include_next", "import"].contains(&what.text) => {
                    let header: String = header.iter().map(|token| token.text).collect();
                    if !HEADERS.contains(&header.as_str()) {
                        return None;
                    }
                }
                [what, name, ..] if what.is_word("define") => code.macros.push(name.text),
                _ => {}
            }
            code.tokens.push(*sign);
            code.directives.extend(directive);
        }
        Some(code)
    }

    fn all(&self) -> impl Iterator<Item = &Token<'a>> {
        self.tokens.iter().chain(&self.directives)
    }

    /// Returns the tokens between the last declaration or block before `at` and `at`, without those
    /// in parentheses.
    fn specifiers(&self, at: usize) -> Vec<Token<'a>> {
        let before = &self.tokens[..at];
        let ends = |token: &Token<'_>| [";", "{", "}"].iter().any(|sign| token.is_sign(sign));
        let from = before.iter().rposition(ends).map_or(0, |end| end + 1);
        let mut depth = 0;
        let mut outside = Vec::new();
        for token in &before[from..] {
            depth += i32::from(token.is_sign("("));
            if depth == 0 && !token.is_sign("#") {
                outside.push(*token);
            }
            depth -= i32::from(token.is_sign(")"));
        }
        outside
    }

    /// Returns whether the text gives a type this name.
    fn declares(&self, name: &str) -> bool {
        let has_typedef = self.tokens.iter().any(|token| token.is_word("typedef"));
        self.tokens.windows(2).any(|two| {
            let is_declared = ["using", "struct", "class", "union", "enum"].contains(&two[0].text);
            two[1].is_word(name) && is_declared || has_typedef && two[0].is_word(name) && two[1].is_sign(";")
        })
    }

    fn is_before_parentheses(&self, at: usize) -> bool {
        self.tokens.get(at + 1).is_some_and(|next| next.is_sign("("))
    }

    /// Returns every head of a kernel of this name, or `None` if one may be written in a way that
    /// this module does not read.
    fn heads_of(&self, name: &str) -> Option<Vec<Head<'a>>> {
        let in_block = self.tokens.windows(3).any(|three| is_of_c(&three[..2]) && three[2].is_sign("{"))
            || self.directives.iter().any(|token| token.is_text() && token.text == "C");
        let mut heads = Vec::new();
        for at in (0..self.tokens.len()).filter(|&at| self.tokens[at].is_word(name)) {
            let specifiers = self.specifiers(at);
            let readable = |token: &Token<'_>| {
                !self.macros.contains(&token.text) && !NOT_READ_IN_HEADS.contains(&token.text)
            };
            if !self.is_before_parentheses(at) || !specifiers.iter().all(readable) {
                return None;
            }
            if specifiers.iter().any(|token| token.is_word("__global__")) {
                let is_of_c = in_block || specifiers.windows(2).any(is_of_c);
                heads.push(Head { is_of_c, params: self.params(at + 2)? });
            }
        }
        Some(heads)
    }

    /// Returns the parameters in the parentheses that open before `at`.
    fn params(&self, at: usize) -> Option<Vec<Parameter<'a>>> {
        let len = self.tokens[at..].iter().position(|token| token.is_sign(")"))?;
        let tokens = &self.tokens[at..at + len];
        let readable = |token: &Token<'_>| match token.kind {
            Kind::Word => !self.macros.contains(&token.text),
            Kind::Number => token.text.starts_with(|c: char| c.is_ascii_digit()),
            Kind::Text => false,
            Kind::Sign => [",", "*", "[", "]", ":"].contains(&token.text),
        };
        let attributes = tokens.windows(2).any(|two| two.iter().all(|token| token.is_sign("[")));
        if attributes || !tokens.iter().all(readable) {
            return None;
        }
        if let [] | [Token { text: "void", .. }] = tokens {
            return Some(Vec::new());
        }
        let parameter = |tokens: &[Token<'a>]| {
            let (first, last) = (tokens.first()?, tokens.last()?);
            let text = &self.text[first.at..last.at + last.text.len()];
            Some(Parameter { text, passed: Passed::of(tokens, self) })
        };
        tokens.split(|token| token.is_sign(",")).map(parameter).collect()
    }

    /// Returns the message for text without the kernel `name`, which lists the kernels that it has.
    fn without(&self, name: &str) -> String {
        let is_kernel = |&at: &usize| {
            let other = self.tokens[at];
            other.kind == Kind::Word
                && !other.text.starts_with("__")
                && self.is_before_parentheses(at)
                && self.specifiers(at).iter().any(|token| token.is_word("__global__"))
        };
        let kernels = (0..self.tokens.len()).filter(is_kernel);
        let mut others: Vec<&str> = kernels.map(|at| self.tokens[at].text).collect();
        others.dedup();
        let only = if others.is_empty() { String::new() } else { format!(", only {}", others.join(", ")) };
        format!("its CUDA C++ has no kernel {name}{only}; give both the same name")
    }
}

fn is_of_c(two: &[Token<'_>]) -> bool {
    two[0].is_word("extern") && two[1].is_text() && two[1].text == "C"
}

/// Returns the tokens of a text, without comments, or `None` if a literal or a comment does not
/// end.
fn tokens(text: &str) -> Option<Vec<Token<'_>>> {
    let in_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$') || !c.is_ascii();
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 0);
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let until = |end: &str, from: usize| rest[from..].find(end).map(|found| from + found);
        let (kind, len) = match first {
            '\n' => {
                line += 1;
                at += 1;
                continue;
            }
            _ if first.is_whitespace() => {
                at += first.len_utf8();
                continue;
            }
            '/' if rest.starts_with("//") => {
                at += until("\n", 0).unwrap_or(rest.len());
                continue;
            }
            '/' if rest.starts_with("/*") => {
                at += until("*/", 2)? + 2;
                continue;
            }
            '"' | '\'' => {
                let end = end_of_literal(rest, first)?;
                let kind = if first == '"' { Kind::Text } else { Kind::Number };
                tokens.push(Token { kind, text: &rest[1..end], at: at + 1, line });
                at += end + 1;
                continue;
            }
            // A quote inside a number separates its digits.
            '0'..='9' => (Kind::Number, rest.find(|c| !in_word(c) && !matches!(c, '.' | '\''))),
            _ if in_word(first) => (Kind::Word, rest.find(|c| !in_word(c))),
            _ => (Kind::Sign, Some(first.len_utf8())),
        };
        let len = len.unwrap_or(rest.len());
        tokens.push(Token { kind, text: &rest[..len], at, line });
        at += len;
    }
    Some(tokens)
}

/// Returns the position of the quote that ends the literal at the beginning of `text`, on the same
/// line.
fn end_of_literal(text: &str, quote: char) -> Option<usize> {
    let mut escaped = true;
    for (at, c) in text.char_indices() {
        match c {
            '\n' => return None,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests;
