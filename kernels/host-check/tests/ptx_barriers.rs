//! The barriers of the committed PTX are needed: without one, some order of the warps gives a wrong
//! result, or the check of races reports it.
//!
//! The tests remove one barrier at a time from a text, run the kernel with several seeds and
//! compare values. A warp mostly runs its lanes together, so few seeds show a wrong value where a
//! barrier that separates threads of the same warp is missing. The check of races reports it.
#![cfg(target_os = "linux")]

use host_check::{Agree, Check, Launch, Problem, load, plain, ptx_text};
use std::collections::BTreeSet;
use warpline_kernels::{ALL, SUM_RUN, launch};
use warpline_runtime::kernel::{Kernel, LaunchConfig};

const SEEDS: u64 = 8;

/// A call of a kernel, and the launches that are tried without one of its barriers.
struct Call {
    check: Check,
    agree: Agree,
    launches: Vec<LaunchConfig>,
}

fn call(check: Check, agree: Agree, launches: &[LaunchConfig]) -> Call {
    Call { check, agree, launches: launches.to_vec() }
}

/// Returns calls that use all barriers of the kernel with this name. Each block has several warps.
fn calls(name: &str) -> Vec<Call> {
    let sizes = |sizes: &[u64]| sizes.iter().fold(Check::of(name), |check, &size| check.scalar(size));
    let close = Agree::Within { absolute: 1e-3, relative: 1e-5 };
    let block = [launch::one_block(), LaunchConfig::linear(1, 64)];
    match name {
        "column_moments" | "column_sums" => {
            let (rows, cols) = (300usize, 70usize);
            let start = sizes(&[rows as u64, cols as u64]);
            let x = plain(rows * cols, 1);
            let check = if name == "column_sums" {
                start.slice(&x, 0).slice(&vec![9.0f32; cols], 0)
            } else {
                let (means, squares) = (vec![1.5f64; cols], vec![2.5f64; cols]);
                start.slice(&x, 0).slice(&vec![7u64; cols], 0).slice(&means, 0).slice(&squares, 0)
            };
            // Two blocks take three tiles of columns, so one of them takes a tile after another.
            vec![call(check, Agree::Bits, &[LaunchConfig::linear(2, 512), LaunchConfig::linear(1, 64)])]
        }
        "count_equal" => {
            let n = 3000;
            let x: Vec<i64> = (0..n).map(|i| i * 7 % 5).collect();
            let y: Vec<i64> = (0..n).map(|i| i * 3 % 5).collect();
            let check = sizes(&[n as u64]).slice(&x, 0).slice(&y, 0).slice(&[9i64], 0);
            vec![call(check, Agree::Bits, &block)]
        }
        "cross_entropy" => {
            let (rows, cols) = (1100usize, 3usize);
            let labels: Vec<i64> = (0..rows as i64).map(|r| r * 7 % 3).collect();
            let start = sizes(&[rows as u64, cols as u64]).slice(&plain(rows * cols, 1), 0).slice(&labels, 0);
            let check = start.slice(&[9.0f32], 0).slice(&vec![9.0f32; rows * cols], 0);
            vec![call(check, close, &block)]
        }
        "cross_entropy_mean" => {
            let losses: Vec<f64> = plain(3000, 9).into_iter().map(f64::from).collect();
            vec![call(sizes(&[3000]).slice(&losses, 0).slice(&[9.0f32], 0), Agree::Bits, &block)]
        }
        "linear" | "matmul" => {
            let small = [40, 70, 50];
            // 143 tiles of 64 × 64.
            let large = [700, 770, 40];
            let product = |[m, n, k]: [usize; 3]| {
                let start = sizes(&[m as u64, n as u64, k as u64]).scalar(0u32);
                let start = if name == "matmul" { start.scalar(0u32) } else { start };
                let start = start.slice(&plain(m * k, 1), 0).slice(&plain(k * n, 2), 0);
                let start = if name == "linear" { start.slice(&plain(n, 3), 0) } else { start };
                let own = launch::product(m as u64, n as u64);
                let fewer = LaunchConfig::linear(own.grid[0].div_ceil(3), own.block[0]);
                call(start.slice(&vec![9.0f32; m * n], 0), close, &[fewer])
            };
            vec![product(small), product(large)]
        }
        "maxima" => {
            let (runs, run) = (9, 1024);
            // The largest element of a run is its last one, which takes part in all steps. The
            // elements of earlier runs are larger.
            let x: Vec<f32> =
                (0..runs * run).map(|i| (i % run) as f32 - (i / run * 2 * run) as f32).collect();
            let start = sizes(&[x.len() as u64, run as u64]).slice(&x, 0);
            let check = start.slice(&vec![9.0f32; runs], 0);
            vec![call(check, Agree::Bits, &[LaunchConfig::linear(2, 1024), LaunchConfig::linear(1, 96)])]
        }
        "mean" | "sum" => {
            let n = 70_001;
            vec![call(sizes(&[n as u64]).slice(&plain(n, 5), 0).slice(&[9.0f32], 0), Agree::Bits, &block)]
        }
        "sum_runs" => {
            let n = 3 * SUM_RUN as usize + 77;
            let check = sizes(&[n as u64]).slice(&plain(n, 5), 0).slice(&[9.0f32; 4], 0);
            vec![call(check, Agree::Bits, &[LaunchConfig::linear(2, 512), LaunchConfig::linear(1, 64)])]
        }
        "sum_tree" => {
            let n = 3000;
            let check = sizes(&[n as u64]).scalar(3.0f32).slice(&plain(n, 5), 0).slice(&[9.0f32], 0);
            vec![call(check, Agree::Bits, &block)]
        }
        "transpose" => {
            let check = sizes(&[100, 70]).slice(&plain(7000, 1), 0).slice(&vec![9.0f32; 7000], 0);
            vec![call(check, Agree::Bits, &[LaunchConfig::linear(3, 256), LaunchConfig::linear(1, 64)])]
        }
        "transpose_i64" => {
            let x: Vec<i64> = (0..7000).collect();
            let check = sizes(&[100, 70]).slice(&x, 0).slice(&vec![9i64; 7000], 0);
            vec![call(check, Agree::Bits, &[LaunchConfig::linear(3, 256), LaunchConfig::linear(1, 64)])]
        }
        _ => panic!("{name} has a barrier and is new: write calls of it that use all barriers"),
    }
}

/// Returns the lines of the barriers in a kernel of a PTX text.
fn barriers(text: &str, name: &str) -> Vec<usize> {
    let mut entry = "";
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some((_, head)) = line.split_once(".entry ") {
            entry = head.trim_end_matches('(');
        }
        if entry == name && line.trim_start().starts_with("bar.sync") {
            found.push(number);
        }
    }
    found
}

fn without_line(text: &str, removed: usize) -> String {
    let lines = text.lines().enumerate().map(|(number, line)| if number == removed { "" } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns what goes wrong in some call of a kernel with some seed.
fn problem(calls: &[Call], text: &str, name: &str) -> Option<Problem> {
    let kernel = load(text, name);
    calls.iter().find_map(|call| {
        call.launches.iter().find_map(|&config| {
            (1..=SEEDS).find_map(|seed| {
                let launch = Launch::new(config).shuffled(seed);
                // SAFETY: `calls` gives all operands the lengths that the kernels require, and a
                // text without a barrier has the same parameters.
                unsafe { call.check.compares_with(&kernel, call.agree, &launch) }.err()
            })
        })
    })
}

/// Returns the kernels that have barriers, with their text and the lines of its barriers.
fn kernels_with_barriers() -> impl Iterator<Item = (&'static Kernel, &'static str, Vec<usize>)> {
    let kernels = ALL.iter().map(|kernel| {
        let text = ptx_text(kernel);
        (*kernel, text, barriers(text, kernel.name))
    });
    kernels.filter(|(_, _, found)| !found.is_empty())
}

#[test]
fn kernels_with_all_barriers_are_right_in_any_order_of_warps() {
    for (kernel, text, _) in kernels_with_barriers() {
        let problem = problem(&calls(kernel.name), text, kernel.name);
        assert!(problem.is_none(), "{}: {}", kernel.name, problem.map_or(String::new(), |it| it.to_string()));
    }
}

#[test]
fn a_kernel_without_one_of_its_barriers_goes_wrong() {
    let mut unnoticed = BTreeSet::new();
    for (kernel, text, barriers) in kernels_with_barriers() {
        let calls = calls(kernel.name);
        for (number, &line) in barriers.iter().enumerate() {
            if problem(&calls, &without_line(text, line), kernel.name).is_none() {
                unnoticed.insert((kernel.name, number));
            }
        }
    }
    assert!(unnoticed.is_empty(), "these barriers may be removed: {unnoticed:?}");
}
