//! The declarations in PTX text: its version and target, entries with their parameters and limits,
//! and global variables.
//!
//! In the bodies of entries, only the shared variables are parsed. The grammar is that of the PTX
//! manual's chapters on kernel parameters, performance-tuning directives and state spaces, as far
//! as compilers use it.

use crate::target::{Target, Version};
use std::collections::BTreeMap;

/// The declarations of a module.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Ptx {
    pub(crate) version: Version,
    pub(crate) target: Target,
    pub(crate) entries: BTreeMap<String, Entry>,
    /// The variables in global or constant memory.
    pub(crate) globals: BTreeMap<String, Global>,
}

/// A function that can be launched.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Entry {
    /// The sizes of its parameters in bytes, in order.
    pub(crate) params: Vec<usize>,
    /// `.maxntid`: the maximum threads per block, which is the product of its numbers.
    pub(crate) max_threads: Option<u32>,
    /// `.reqntid`: the required threads along each axis of a block.
    pub(crate) threads: Option<[u32; 3]>,
    /// Bytes of the shared variables that its body declares or names.
    pub(crate) shared_bytes: u32,
}

/// A variable in global or constant memory.
#[derive(Debug, PartialEq)]
pub(crate) struct Global {
    /// The initial contents, zero where the text gives no value.
    pub(crate) bytes: Vec<u8>,
}

/// Parses PTX text. The error describes the first part that is not PTX.
pub(crate) fn parse(text: &str) -> Result<Ptx, String> {
    let text = without_comments(text)?;
    let mut tokens = Tokens { rest: &text };
    let mut ptx = Ptx::default();
    if tokens.next() != Some(".version") {
        return Err("it does not begin with .version".into());
    }
    ptx.version = tokens.next().and_then(Version::parse).ok_or("no version")?;
    let mut target = None;
    // The module's shared variables. Each counts for the entries whose bodies name it.
    let mut shared = BTreeMap::new();
    let mut external = false;
    while let Some(token) = tokens.next() {
        let declared_elsewhere = std::mem::replace(&mut external, token == ".extern");
        match token {
            ".target" => {
                target = Some(tokens.next().and_then(Target::parse).ok_or("no target that is known")?);
                while tokens.peek() == Some(",") {
                    tokens.next();
                    tokens.next();
                }
            }
            ".address_size" => {
                if tokens.next() != Some("64") {
                    return Err("the address size is not 64".into());
                }
            }
            ".visible" | ".extern" | ".weak" | ".common" => {}
            ".entry" => entry(&mut tokens, &shared, &mut ptx)?,
            ".func" => function(&mut tokens)?,
            ".global" | ".const" => global(&mut tokens, &mut ptx)?,
            // An `.extern` one is the dynamic shared memory, which the next arm skips.
            ".shared" if !declared_elsewhere => shared.extend([shared_variable(&mut tokens)?]),
            ".shared" | ".tex" | ".file" | ".pragma" | ".alias" => tokens.skip_declaration()?,
            ".section" => {
                tokens.until("{")?;
                tokens.skip_braces()?;
            }
            // Debug information, such as line tables.
            _ if token.starts_with("@@") || token.starts_with(".loc") => tokens.skip_declaration()?,
            _ => return Err(format!("{token:?} where a declaration was expected")),
        }
    }
    ptx.target = target.ok_or("it has no .target")?;
    Ok(ptx)
}

fn without_comments(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("//") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
        } else if rest.starts_with("/*") {
            rest = &rest[rest.find("*/").ok_or("a comment does not end")? + 2..];
            out.push(' ');
        } else {
            out.push('/');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Splits text into words, quoted strings and single characters.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    fn peek(&self) -> Option<&'a str> {
        let rest = self.rest.trim_start();
        let first = rest.chars().next()?;
        let word = |c: char| c.is_ascii_alphanumeric() || "_$.%@+-".contains(c);
        let len = match first {
            '"' => 2 + rest[1..].find('"').unwrap_or(rest.len().saturating_sub(2)),
            _ if word(first) => rest.find(|c| !word(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        Some(&rest[..len])
    }

    fn next(&mut self) -> Option<&'a str> {
        let token = self.peek()?;
        self.rest = &self.rest.trim_start()[token.len()..];
        Some(token)
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        match self.next() {
            Some(token) if token == wanted => Ok(()),
            found => Err(format!("{:?} where {wanted:?} was expected", found.unwrap_or("the end"))),
        }
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let starts_name =
            |token: &&str| token.starts_with(|c: char| c.is_ascii_alphabetic() || "_$%".contains(c));
        self.next().filter(starts_name).ok_or_else(|| "a name was expected".into())
    }

    fn number(&mut self) -> Result<usize, String> {
        let token = self.next().unwrap_or("the end");
        token.parse().map_err(|_| format!("{token:?} where a number was expected"))
    }

    /// Reads one to three numbers separated by commas. Missing ones are 1.
    fn triple(&mut self) -> Result<[u32; 3], String> {
        let mut numbers = [1; 3];
        for number in &mut numbers {
            *number = self.number()? as u32;
            if self.peek() != Some(",") {
                break;
            }
            self.next();
        }
        Ok(numbers)
    }

    /// Skips the tokens up to and including `wanted`.
    fn until(&mut self, wanted: &str) -> Result<(), String> {
        while let Some(token) = self.next() {
            if token == wanted {
                return Ok(());
            }
        }
        Err(format!("{wanted:?} is missing"))
    }

    /// Skips to the end of a declaration: a semicolon or the end of the line, whichever is first.
    fn skip_declaration(&mut self) -> Result<(), String> {
        let end = self.rest.find([';', '\n']).map_or(self.rest.len(), |at| at + 1);
        self.rest = &self.rest[end..];
        Ok(())
    }

    /// Skips past the brace that closes the one just read.
    fn skip_braces(&mut self) -> Result<(), String> {
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                Some("{") => depth += 1,
                Some("}") => depth -= 1,
                Some(_) => {}
                None => return Err("a brace is not closed".into()),
            }
        }
        Ok(())
    }
}

/// Returns the size of a fundamental type in bytes.
fn type_bytes(name: &str) -> Option<usize> {
    Some(match name {
        ".b8" | ".u8" | ".s8" | ".pred" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" | ".tf32" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" | ".texref" | ".samplerref" | ".surfref" => 8,
        ".b128" => 16,
        _ => return None,
    })
}

/// Parses a declarator after its state space. Returns the size of an element in bytes, the name
/// and, for an array, the number of elements: 0 if the text leaves it open.
fn declarator<'a>(tokens: &mut Tokens<'a>) -> Result<(usize, &'a str, Option<usize>), String> {
    let mut lanes = 1;
    let bytes = loop {
        let token = tokens.next().unwrap_or("the end");
        if let Some(bytes) = type_bytes(token) {
            break bytes * lanes;
        }
        match token {
            ".align" => drop(tokens.number()?),
            ".v2" => lanes = 2,
            ".v4" => lanes = 4,
            ".ptr" | ".global" | ".const" | ".shared" | ".local" | ".attribute" => {
                if token == ".attribute" {
                    tokens.until(")")?;
                }
            }
            _ => return Err(format!("{token:?} where a type was expected")),
        }
    };
    // The attributes of a pointer parameter follow the type.
    while let Some(token @ (".ptr" | ".global" | ".const" | ".shared" | ".local" | ".align")) = tokens.peek()
    {
        tokens.next();
        if token == ".align" {
            tokens.number()?;
        }
    }
    let name = tokens.name()?;
    let mut count = None;
    while tokens.peek() == Some("[") {
        tokens.next();
        let len = if tokens.peek() == Some("]") { 0 } else { tokens.number()? };
        tokens.expect("]")?;
        count = Some(count.unwrap_or(1) * len);
    }
    Ok((bytes, name, count))
}

/// Parses a shared variable after its `.shared`. Returns its name and its size in bytes.
fn shared_variable(tokens: &mut Tokens<'_>) -> Result<(String, u32), String> {
    let (element, name, count) = declarator(tokens)?;
    tokens.expect(";")?;
    Ok((name.to_owned(), (element * count.unwrap_or(1)) as u32))
}

fn entry(tokens: &mut Tokens<'_>, shared: &BTreeMap<String, u32>, ptx: &mut Ptx) -> Result<(), String> {
    let name = tokens.name()?.to_owned();
    let mut entry = Entry::default();
    let params = &mut entry.params;
    if tokens.peek() == Some("(") {
        tokens.next();
        if tokens.peek() == Some(")") {
            tokens.next();
        } else {
            loop {
                tokens.expect(".param")?;
                let (bytes, _, count) = declarator(tokens)?;
                params.push(bytes * count.unwrap_or(1));
                match tokens.next() {
                    Some(",") => {}
                    Some(")") => break,
                    found => {
                        return Err(format!("{:?} in the parameters of {name}", found.unwrap_or("the end")));
                    }
                }
            }
        }
    }
    // Limits precede the body. A declaration ends without one.
    while let Some(token) = tokens.next() {
        match token {
            ".maxntid" => entry.max_threads = Some(tokens.triple()?.iter().product()),
            ".reqntid" => entry.threads = Some(tokens.triple()?),
            "{" => {
                entry.shared_bytes = shared_in_body(tokens, shared)?;
                ptx.entries.insert(name, entry);
                return Ok(());
            }
            ";" => return Ok(()),
            _ => {}
        }
    }
    Err(format!("{name} has no body"))
}

/// Skips the body whose opening brace was just read. Returns the size of the shared variables that
/// it declares and of the module's shared variables that it names, in bytes.
fn shared_in_body(tokens: &mut Tokens<'_>, shared: &BTreeMap<String, u32>) -> Result<u32, String> {
    let (mut depth, mut bytes, mut named) = (1, 0, BTreeMap::new());
    while depth > 0 {
        match tokens.next() {
            Some("{") => depth += 1,
            Some("}") => depth -= 1,
            Some(".shared") => bytes += shared_variable(tokens)?.1,
            Some(word) => drop(shared.get(word).and_then(|bytes| named.insert(word, *bytes))),
            None => return Err("a brace is not closed".into()),
        }
    }
    Ok(bytes + named.values().sum::<u32>())
}

fn function(tokens: &mut Tokens<'_>) -> Result<(), String> {
    while let Some(token) = tokens.next() {
        match token {
            "{" => return tokens.skip_braces(),
            ";" => return Ok(()),
            _ => {}
        }
    }
    Err("a function has no body".into())
}

fn global(tokens: &mut Tokens<'_>, ptx: &mut Ptx) -> Result<(), String> {
    loop {
        let (element, name, count) = declarator(tokens)?;
        let mut bytes = Vec::new();
        let mut end = tokens.next();
        if end == Some("=") {
            initialiser(tokens, element, &mut bytes)?;
            end = tokens.next();
        }
        let len = match count {
            Some(0) => bytes.len(),
            _ => element * count.unwrap_or(1),
        };
        if bytes.len() > len {
            return Err(format!("{name} has more initial values than elements"));
        }
        bytes.resize(len, 0);
        ptx.globals.insert(name.to_owned(), Global { bytes });
        match end {
            Some(";") => return Ok(()),
            Some(",") => {}
            found => return Err(format!("{:?} after {name}", found.unwrap_or("the end"))),
        }
    }
}

fn initialiser(tokens: &mut Tokens<'_>, element: usize, bytes: &mut Vec<u8>) -> Result<(), String> {
    let token = tokens.next().unwrap_or("the end");
    if token != "{" {
        bytes.extend(value(token, element)?);
        return Ok(());
    }
    while tokens.peek() != Some("}") {
        initialiser(tokens, element, bytes)?;
        if tokens.peek() == Some(",") {
            tokens.next();
        }
    }
    tokens.expect("}")
}

/// Parses a literal into the bytes of an element. It is decimal, hexadecimal (`0x…`), or the bits
/// of a float (`0f…`, `0d…`).
fn value(token: &str, element: usize) -> Result<Vec<u8>, String> {
    let bits = |digits: &str, radix| u64::from_str_radix(digits, radix).ok();
    let unsigned = token.trim_end_matches('U');
    let parsed = match unsigned.get(..2) {
        Some("0x" | "0X" | "0f" | "0F" | "0d" | "0D") => bits(&unsigned[2..], 16),
        _ if unsigned.contains('.') => match element {
            4 => unsigned.parse::<f32>().ok().map(|number| number.to_bits() as u64),
            _ => unsigned.parse::<f64>().ok().map(f64::to_bits),
        },
        _ => unsigned.parse::<i128>().ok().map(|number| number as u64),
    };
    let parsed = parsed.ok_or_else(|| format!("{token:?} where a value was expected"))?;
    Ok(parsed.to_le_bytes().into_iter().chain([0; 8]).take(element).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.1\n.target sm_70, debug\n.address_size 64\n";

    fn parsed(body: &str) -> Result<Ptx, String> {
        parse(&format!("//\n// Generated by a compiler\n//\n{HEAD}{body}"))
    }

    #[test]
    fn entries_have_the_sizes_of_their_parameters() {
        let ptx = parsed(
            ".visible .entry saxpy(\n\t.param .f32 saxpy_param_0,\n\t.param .u64 .ptr .global .align 16 saxpy_param_1,\n\
             \t.param .align 8 .b8 saxpy_param_2[24], .param .u16 x)\n.maxntid 256, 1, 1\n.minnctapersm 2\n{\n\t.reg .f32 \t%f<5>;\n\
             \t{ .reg .b16 t; }\n\t@%p1 bra $L__BB0_2;\n\tret;\n}\n.entry none()\n{ ret; }\n.entry bare { ret; }",
        )
        .unwrap();
        assert_eq!(ptx.entries["saxpy"].params, [4, 8, 24, 2]);
        assert_eq!((ptx.entries["saxpy"].max_threads, ptx.entries["saxpy"].threads), (Some(256), None));
        assert_eq!(ptx.entries["none"].params, [0usize; 0]);
        assert_eq!(ptx.entries["bare"].params, [0usize; 0]);
    }

    #[test]
    fn the_head_says_which_drivers_and_devices_take_the_text() {
        let ptx = parsed("").unwrap();
        assert_eq!((ptx.version, ptx.target), (Version(8, 1), Target::parse("sm_70").unwrap()));
    }

    #[test]
    fn limits_and_shared_variables_belong_to_their_entries() {
        let ptx = parsed(
            ".shared .align 4 .b8 of_the_module[400];\n.extern .shared .align 16 .b8 dynamic[];\n\
             .visible .entry a()\n.reqntid 32, 2\n{\n\t.shared .align 8 .f64 own[4];\n\t{ .shared .u32 one; }\n\
             \tmov.u32 %r1, dynamic; ld.shared.u32 %r2, [own];\n}\n\
             .visible .entry b()\n.maxntid 1024\n{ mov.u32 %r1, of_the_module; mov.u32 %r2, of_the_module; }",
        )
        .unwrap();
        let (a, b) = (&ptx.entries["a"], &ptx.entries["b"]);
        assert_eq!((a.threads, a.max_threads, a.shared_bytes), (Some([32, 2, 1]), None, 36));
        assert_eq!((b.threads, b.max_threads, b.shared_bytes), (None, Some(1024), 400));
    }

    #[test]
    fn functions_and_declarations_are_no_entries() {
        let ptx = parsed(
            ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b) ;\n\
             .func (.reg .u32 r) twice(.reg .u32 x) { add.u32 r, x, x; ret; }\n\
             .extern .shared .align 16 .b8 smem[];\n.visible .entry k() { /* } */ ret; }",
        )
        .unwrap();
        assert_eq!(ptx.entries.keys().collect::<Vec<_>>(), ["k"]);
        assert!(ptx.globals.is_empty());
    }

    #[test]
    fn globals_hold_their_initial_values() {
        let ptx = parsed(
            ".visible .global .align 4 .u32 counter;\n.visible .global .align 4 .u32 seed = 7;\n\
             .global .align 4 .f32 table[4] = {0f3F800000, 2.0};\n.global .align 1 .b8 text[] = {104, 105, 0};\n\
             .visible .const .align 8 .s64 m[2][2] = {{1, -1}, {2}};",
        )
        .unwrap();
        assert_eq!(ptx.globals["counter"].bytes, [0; 4]);
        assert_eq!(ptx.globals["seed"].bytes, [7, 0, 0, 0]);
        assert_eq!(ptx.globals["table"].bytes[..8], [0, 0, 128, 63, 0, 0, 0, 64]);
        assert_eq!(ptx.globals["table"].bytes.len(), 16);
        assert_eq!(ptx.globals["text"].bytes, *b"hi\0");
        assert_eq!(ptx.globals["m"].bytes[8..16], [255; 8]);
        assert_eq!(ptx.globals["m"].bytes.len(), 32);
    }

    #[test]
    fn what_is_not_ptx_is_refused() {
        for text in [
            "",
            "hello",
            ".version",
            ".version eight\n.target sm_70\n",
            ".version 8.1\n",
            ".version 8.1\n.target volta\n",
            ".version 8.1\n.target sm_70\nhello",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        for body in [
            ".entry k(",
            ".entry k(.param .u33 a) { ret; }",
            ".entry k(.param .u32 a .param .u32 b) { ret; }",
            ".entry k() { ret;",
            ".entry () { }",
            ".global .u32 x = y z;",
            ".global .u32 x",
            "/* never closed",
        ] {
            assert!(parsed(body).is_err(), "{body:?}");
        }
    }
}
