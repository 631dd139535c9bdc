//! Joins PTX texts to one, as a linker joins objects.
//!
//! A name that one text declares `.extern` is the definition in another text. The texts are split
//! into their top-level items, which stay as they are. Debug information is left out, because its
//! numbers of files have a meaning in one text alone.

use crate::target::{Target, Version};
use std::collections::BTreeMap;
use std::fmt::Write;
use warpline_ptx::text::{self, Linkage};

/// A text with the name that errors give it.
pub(crate) struct Text {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// A reason why texts cannot be joined.
#[derive(Debug, PartialEq)]
pub(crate) enum Unjoined {
    /// The texts contradict each other.
    Invalid(String),
    /// The texts are valid, but this module cannot join them.
    Unsupported(String),
}

/// A function or a variable of a text.
struct Symbol<'a> {
    name: &'a str,
    linkage: Linkage,
    is_definition: bool,
}

/// A function, a variable or a directive outside of functions.
struct Item<'a> {
    source: &'a str,
    /// None for a directive.
    symbol: Option<Symbol<'a>>,
}

/// Returns a text with the functions and the variables of all texts. A single text stays as it is.
pub(crate) fn join(texts: &[Text]) -> Result<String, Unjoined> {
    if let [only] = texts {
        return Ok(only.text.clone());
    }
    let (mut items, mut newest) = (Vec::new(), (Version::default(), Target::default(), "sm_30"));
    for text in texts {
        let module =
            text::parse(&text.text).map_err(|why| Unjoined::Invalid(format!("{}: {why}", text.name)))?;
        let version = Version(module.version.0, module.version.1);
        newest.0 = newest.0.max(version);
        let target = Target::parse(module.target).unwrap_or_default();
        if target.is_newer_than(newest.1) {
            (newest.1, newest.2) = (target, module.target);
        }
        items.push(split(&text.text, &module));
    }
    let kept = kept(texts, &items)?;
    let mut joined = format!(".version {}\n.target {}\n.address_size 64\n", newest.0, newest.2);
    for (index, items) in items.iter().enumerate() {
        for item in items {
            let Some(symbol) = &item.symbol else { continue };
            let is_elsewhere = kept.get(symbol.name).is_some_and(|place| *place != index);
            if !is_elsewhere || symbol.linkage == Linkage::Internal {
                let is_location = |line: &str| line.split_whitespace().next() == Some(".loc");
                let lines = item.source.lines().filter(|line| !is_location(line));
                lines.for_each(|line| writeln!(joined, "{line}").expect("writing to a string succeeds"));
            }
        }
    }
    Ok(joined)
}

/// Returns the text that each name is taken from: the one that defines it, or else the first that
/// declares it.
fn kept<'a>(texts: &[Text], items: &[Vec<Item<'a>>]) -> Result<BTreeMap<&'a str, usize>, Unjoined> {
    let mut kept: BTreeMap<&str, (usize, &Symbol<'_>)> = BTreeMap::new();
    for (index, items) in items.iter().enumerate() {
        for symbol in items.iter().filter_map(|item| item.symbol.as_ref()) {
            let Some((earlier, other)) = kept.get(symbol.name) else {
                kept.insert(symbol.name, (index, symbol));
                continue;
            };
            if *earlier == index || !symbol.is_definition || !other.is_definition {
                if symbol.is_definition && !other.is_definition {
                    kept.insert(symbol.name, (index, symbol));
                }
                continue;
            }
            let (name, first, second) = (symbol.name, &texts[*earlier].name, &texts[index].name);
            match (other.linkage, symbol.linkage) {
                (Linkage::Internal, _) | (_, Linkage::Internal) => {
                    return Err(Unjoined::Unsupported(format!(
                        "{first} and {second} both define {name}, at least one for itself alone; rename it"
                    )));
                }
                (_, Linkage::Weak | Linkage::Common) => {}
                (Linkage::Weak | Linkage::Common, _) => {
                    kept.insert(symbol.name, (index, symbol));
                }
                _ => {
                    return Err(Unjoined::Invalid(format!(
                        "{first} and {second} both define {name}; rename one"
                    )));
                }
            }
        }
    }
    Ok(kept.into_iter().map(|(name, (index, _))| (name, index)).collect())
}

/// Splits a text into its items.
fn split<'a>(source: &'a str, module: &text::Module<'a>) -> Vec<Item<'a>> {
    let place = |name: &str| name.as_ptr().addr() - source.as_ptr().addr();
    let mut symbols = BTreeMap::new();
    for function in &module.functions {
        let is_definition = function.body.is_some();
        symbols.insert(place(function.name), (function.name, function.linkage, is_definition));
    }
    for variable in &module.variables {
        let is_definition = variable.linkage != Linkage::Extern;
        symbols.insert(place(variable.name), (variable.name, variable.linkage, is_definition));
    }
    let (mut items, mut start) = (Vec::new(), 0);
    while start < source.len() {
        let end = end_of_item(source.as_bytes(), start);
        let symbol = symbols.range(start..end).next();
        let symbol = symbol.map(|(_, (name, linkage, is_definition))| Symbol {
            name,
            linkage: *linkage,
            is_definition: *is_definition,
        });
        items.push(Item { source: &source[start..end], symbol });
        start = end;
    }
    items
}

/// Returns the end of the item at `start`: behind the line of a directive such as `.version`, the
/// semicolon of a declaration, or the closing brace of a body.
fn end_of_item(source: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0u32);
    let starts = |at: usize, with: &str| source[at..].starts_with(with.as_bytes());
    let mut is_line = false;
    let mut is_initial_value = false;
    while at < source.len() {
        if starts(at, "//") {
            at += source[at..].iter().position(|byte| *byte == b'\n').unwrap_or(source.len() - at);
            continue;
        }
        if starts(at, "/*") {
            at +=
                source[at..].windows(2).position(|two| two == b"*/").map_or(source.len() - at, |end| end + 2);
            continue;
        }
        if depth == 0 && [".version", ".target", ".address_size", ".file"].iter().any(|line| starts(at, line))
        {
            is_line = true;
        }
        match source[at] {
            b'"' => at += source[at + 1..].iter().position(|byte| *byte == b'"').map_or(0, |end| end + 1),
            b'\n' if is_line => return at + 1,
            b';' if depth == 0 => return at + 1,
            b'=' if depth == 0 => is_initial_value = true,
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && !is_initial_value {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    source.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(bodies: &[&str]) -> Result<String, Unjoined> {
        let text = |(index, body): (usize, &&str)| Text {
            name: format!("text {index}"),
            text: format!("// a\n.version 8.{index}\n.target sm_7{index}\n.address_size 64\n{body}\n"),
        };
        join(&bodies.iter().enumerate().map(text).collect::<Vec<_>>())
    }

    const DECLARES: &str = ".extern .func (.param .b32 r) twice(.param .b32 x);\n\
        .extern .const .align 4 .b8 table[8];\n.file 1 \"a // {.cu\"\n\
        .visible .entry k() {\n.local .b32 depot;\n.loc 1 2 3\n{ .reg .b32 r; } ret; }";
    const DEFINES: &str = ".visible .const .align 4 .b8 table[8] = {1, 2, 3, 4, 5, 6, 7, 8};\n\
        .visible .func (.param .b32 r) twice(.param .b32 x) { ret; }";

    #[test]
    fn a_declaration_becomes_the_definition_of_another_text() {
        for order in [[DECLARES, DEFINES], [DEFINES, DECLARES]] {
            let joined = joined(&order).unwrap();
            let module = text::parse(&joined).unwrap();
            assert_eq!((module.version, module.target), ((8, 1), "sm_71"));
            let functions = module.functions.iter().map(|function| (function.name, function.body.is_some()));
            let mut functions: Vec<_> = functions.collect();
            functions.sort_unstable();
            assert_eq!(functions, [("k", true), ("twice", true)]);
            assert_eq!(module.variables.len(), 1);
            assert!(module.variables[0].init.is_some());
            assert!(joined.contains(".local .b32 depot;"));
            assert!(!joined.contains(".loc 1") && !joined.contains(".extern"));
        }
    }

    #[test]
    fn a_name_that_no_text_defines_stays_declared_once() {
        let print = ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n";
        let joined = joined(&[print, print]).unwrap();
        assert_eq!(joined.matches("vprintf").count(), 1);
    }

    #[test]
    fn a_name_has_one_definition() {
        let (weak, strong) = (".weak .func f() { trap; }", ".visible .func f() { ret; }");
        for order in [[weak, strong], [strong, weak]] {
            let joined = joined(&order).unwrap();
            assert!(joined.contains("ret") && !joined.contains("trap"), "{joined}");
        }
        let wrong = joined(&[strong, strong]).unwrap_err();
        assert_eq!(wrong, Unjoined::Invalid("text 0 and text 1 both define f; rename one".into()));
        let wrong = joined(&[strong, ".func f() { ret; }"]).unwrap_err();
        assert!(matches!(wrong, Unjoined::Unsupported(_)));
    }
}
