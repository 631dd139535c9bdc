//! Each opcode of the committed PTX has a test here.

use crate::{
    bits, clusters, comparisons, conversions, copies, floats, flow, halves, integers, matrices, memory,
    packed, warps,
};
use std::collections::BTreeSet;
use std::path::Path;

/// Opcodes without a test here, and why.
const ELSEWHERE: [(&str, &str); 0] = [];

/// Returns the opcodes of a PTX text: the first word of each statement, behind labels and a guard.
fn opcodes(text: &str) -> BTreeSet<String> {
    // These end with the line.
    let ends = [".version", ".target", ".address_size", ".loc", ".file"];
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let lines = lines.filter(|line| !ends.iter().any(|end| line.trim_start().starts_with(end)));
    let text: Vec<&str> = lines.collect();
    let mut found = BTreeSet::new();
    for statement in text.join("\n").split([';', '{', '}']) {
        let words = statement.split_whitespace();
        let mut words = words.skip_while(|word| word.ends_with(':') || word.starts_with('@'));
        // Directives start with a dot, and what is left of lists and vectors has a comma or `%`.
        let Some(word) = words.next().filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
        else {
            continue;
        };
        let is_opcode = word.chars().all(|c| c.is_ascii_alphanumeric() || ['.', '_', ':'].contains(&c));
        // `prototype_1 : .callprototype` has a space.
        if is_opcode && words.next() != Some(":") {
            found.insert(word.to_owned());
        }
    }
    found
}

/// An access without the space and the order, which have tests of their own: all of them share the
/// loops over elements.
fn family(opcode: &str) -> String {
    let parts: Vec<&str> = opcode.split('.').collect();
    let is_access = ["ld", "st", "atom", "red"].contains(&parts[0]);
    let plain = [
        "global", "shared", "local", "param", "const", "nc", "volatile", "relaxed", "acquire", "release",
        "acq_rel", "gpu", "cta", "sys",
    ];
    let kept = parts.iter().filter(|part| !is_access || !plain.contains(part));
    kept.copied().collect::<Vec<&str>>().join(".")
}

fn covered() -> BTreeSet<String> {
    let forms = [
        bits::logic(),
        bits::lookups(),
        bits::shifts(),
        bits::counts(),
        bits::fields(),
        bits::permutations(),
        bits::selections(),
        comparisons::predicates(),
        comparisons::numbers(),
        conversions::integers(),
        conversions::to_integers(),
        conversions::from_integers(),
        conversions::floats(),
        conversions::pairs(),
        floats::arithmetic(),
        floats::signs(),
        floats::extrema(),
        floats::approximations(),
        floats::properties(),
        halves::forms(),
        halves::approximations(),
        integers::arithmetic(),
        integers::of_24_bits(),
        integers::dot_products(),
        packed::forms(),
    ];
    let mut all: BTreeSet<String> = forms.into_iter().flatten().map(|form| form.opcode).collect();
    all.extend(integers::CHAINS.iter().flat_map(|chain| [chain.first.to_owned(), chain.second.to_owned()]));
    let texts = [
        memory::texts(),
        warps::texts(),
        flow::texts(),
        copies::texts(),
        matrices::texts(),
        clusters::texts(),
    ];
    for text in texts.into_iter().flatten() {
        all.extend(opcodes(&text));
    }
    all
}

#[test]
fn each_opcode_of_the_committed_ptx_has_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [root.join("../../../kernels/ptx"), root.join("corpus/ptx")];
    let mut found = BTreeSet::new();
    for folder in folders {
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("it can be read").path();
            if path.extension().is_some_and(|extension| extension == "ptx") {
                found.extend(opcodes(&std::fs::read_to_string(&path).expect("it is text")));
            }
        }
    }
    assert!(found.len() > 250, "only {} opcodes are found", found.len());
    let covered = covered();
    let families: BTreeSet<String> = covered.iter().map(|opcode| family(opcode)).collect();
    let missing: Vec<&String> = found
        .iter()
        .filter(|opcode| !covered.contains(*opcode) && !families.contains(&family(opcode)))
        .filter(|opcode| !ELSEWHERE.iter().any(|(known, _)| known == opcode))
        .collect();
    assert!(missing.is_empty(), "without a test: {missing:?}");
}
