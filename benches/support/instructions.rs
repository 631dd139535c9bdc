//! The number of instructions per iteration of a loop, counted by callgrind.
//!
//! Callgrind runs this program twice with `--loop NAME TIMES`, for two values of TIMES. The
//! difference of the counts is divided by the difference of the times, so nothing before or after
//! the loop counts.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

/// The number of instructions, in total and by source file.
pub struct Counted {
    pub total: f64,
    pub by_file: Vec<(String, f64)>,
}

impl Counted {
    /// Returns the number in files whose path contains one of `parts`.
    pub fn within(&self, parts: &[&str]) -> f64 {
        self.by_file
            .iter()
            .filter(|(file, _)| parts.iter().any(|part| file.contains(part)))
            .map(|(_, n)| n)
            .sum()
    }
}

/// Counts the loop `name`. Returns `None` if valgrind is not installed.
pub fn count(name: &str) -> Option<Counted> {
    count_between(name, 2_000, 12_000)
}

/// Like [`count`], for loops with a large body: callgrind runs about ten million instructions per
/// second.
pub fn count_between(name: &str, few: u64, many: u64) -> Option<Counted> {
    let (few_files, many_files) = (run(name, few)?, run(name, many)?);
    let times = (many - few) as f64;
    let mut by_file: Vec<(String, f64)> = many_files
        .iter()
        .map(|(file, n)| {
            (file.clone(), (*n as f64 - few_files.get(file).copied().unwrap_or(0) as f64) / times)
        })
        .filter(|(_, n)| n.abs() >= 0.05)
        .collect();
    by_file.sort_by(|a, b| b.1.total_cmp(&a.1));
    let sum = |files: &HashMap<String, u64>| files.values().sum::<u64>() as f64;
    Some(Counted { total: (sum(&many_files) - sum(&few_files)) / times, by_file })
}

fn run(name: &str, times: u64) -> Option<HashMap<String, u64>> {
    let out = std::env::temp_dir().join(format!("warpline-bench-{}-{name}-{times}", std::process::id()));
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().ok()?)
        .args(["--loop", name, &times.to_string()])
        .output()
        .ok()?;
    let files = status.status.success().then(|| self_cost_by_file(&out));
    let _ = std::fs::remove_file(&out);
    files
}

/// Sums the self cost of each line by file, inlined code included, from the output of callgrind.
fn self_cost_by_file(path: &Path) -> HashMap<String, u64> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let (mut names, mut files) = (HashMap::new(), HashMap::new());
    let (mut file, mut skip) = (String::new(), false);
    for line in text.lines() {
        if let Some((key, value)) = line.split_once('=') {
            match key {
                "fl" | "fi" | "fe" => {
                    let (id, name) = value.split_once(' ').unwrap_or((value, ""));
                    if !name.is_empty() {
                        names.insert(id.to_owned(), name.to_owned());
                    }
                    file = names.get(id).cloned().unwrap_or_default();
                }
                // The next line is the cost of the callee.
                "calls" => skip = true,
                "cfi" | "cfl" => {
                    if let Some((id, name)) = value.split_once(' ') {
                        names.insert(id.to_owned(), name.to_owned());
                    }
                }
                _ => {}
            }
            continue;
        }
        if !line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            continue;
        }
        if std::mem::take(&mut skip) {
            continue;
        }
        if let Some(cost) = line.split_whitespace().nth(1).and_then(|cost| cost.parse::<u64>().ok()) {
            *files.entry(file.clone()).or_insert(0) += cost;
        }
    }
    files
}
