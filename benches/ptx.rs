//! The executor of PTX: the committed PTX of kernels on one thread of the host, against their
//! twins, and the cost of a launch.

mod support;

use std::hint::black_box;
use support::measure::cpu_ns;
use support::{Options, Sample, Table, interleave, ratio};
use warpline::kernel::{Arg, Kernel, LaunchConfig, Source};
use warpline::kernels::{self, launch};
use warpline_ptx::{Checks, Config, Memory, Module, Region};

/// An argument of a kernel, in the form of its PTX and of its twin.
struct Argument {
    bytes: [u8; 8],
    len_bytes: usize,
    arg: Arg,
    region: Option<Region>,
}

impl Argument {
    fn size(value: usize) -> Self {
        let value = value as u64;
        Argument { bytes: value.to_le_bytes(), len_bytes: 8, arg: Arg::scalar(value), region: None }
    }

    fn word(bits: u32) -> Self {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&bits.to_le_bytes());
        Argument { bytes, len_bytes: 4, arg: Arg::scalar(bits), region: None }
    }

    fn float(value: f32) -> Self {
        Argument { arg: Arg::scalar(value), ..Argument::word(value.to_bits()) }
    }

    /// Borrows elements for as long as the benches below run.
    fn slice(elements: &'static mut [f32], is_writable: bool) -> Self {
        let start = elements.as_mut_ptr().expose_provenance() as u64;
        let len_bytes = size_of_val(elements) as u64;
        let region = Region { is_writable, ..Region::new("operand", start, len_bytes, 4) };
        let arg = Arg::slice(start, elements.len());
        Argument { bytes: start.to_le_bytes(), len_bytes: 8, arg, region: Some(region) }
    }
}

/// A kernel with its arguments.
struct Call {
    kernel: &'static Kernel,
    ptx: warpline_ptx::Kernel,
    config: Config,
    params: Vec<u8>,
    args: Vec<Arg>,
    regions: Vec<Region>,
}

impl Call {
    fn new(kernel: &'static Kernel, config: LaunchConfig, arguments: Vec<Argument>) -> Self {
        let Source::Ptx { texts, .. } = kernel.source else { panic!("{} has no PTX", kernel.name) };
        let text = *texts.last().expect("a text");
        let module = Module::new(text).unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
        let ptx = module.kernel(kernel.name).unwrap_or_else(|error| panic!("{error}"));
        let mut params = Vec::new();
        for argument in &arguments {
            params.resize(params.len().next_multiple_of(argument.len_bytes), 0);
            params.extend(&argument.bytes[..argument.len_bytes]);
        }
        let args = arguments.iter().map(|argument| argument.arg).collect();
        let regions = arguments.into_iter().filter_map(|argument| argument.region).collect();
        let (grid, block) = (config.grid, config.block);
        let config = Config { grid, block, shared_bytes: config.shared_bytes, ..Config::linear(1, 1) };
        Call { kernel, ptx, config, params, args, regions }
    }

    fn run_ptx(&self) {
        self.run_with(Checks::default());
    }

    fn run_with(&self, checks: Checks) {
        let memory = Memory::Regions(self.regions.clone());
        // SAFETY: the regions are slices that live as long as the process, and this thread alone
        // uses them.
        let ran = unsafe { self.ptx.launch(&Config { checks, ..self.config }, &self.params, memory) };
        ran.unwrap_or_else(|fault| panic!("{fault}"));
    }

    fn run_twin(&self) {
        let twin = self.kernel.twin.expect("each kernel here has a twin");
        // SAFETY: a twin needs arguments that fit the kernel, as those of `main` do, and slices
        // that nothing else uses meanwhile.
        unsafe { twin(&self.args) }
    }

    /// Measures launches with and without all checks alternately. Prints their ratio.
    fn compare_checks(&self, table: &Table, what: &str, rounds: usize) {
        let mut checked = || cpu_ns(1, || self.run_with(Checks::ALL)) / 1e3;
        let mut unchecked = || cpu_ns(1, || self.run_ptx()) / 1e3;
        let [checked, unchecked] = interleave(rounds, [&mut checked, &mut unchecked]);
        let ratio: Sample = ratio(&checked, &unchecked);
        let is_met = Some(ratio.median() <= 6.0);
        let what = format!("PTX of {what}: all checks, ratio to none");
        table.row(&what, "", &ratio, "≤ 6", None, is_met);
    }

    /// Measures both forms alternately, with `times` launches a round. Prints their figures in
    /// microseconds, and the ratio.
    fn compare(&self, table: &Table, what: &str, rounds: usize, times: usize) {
        let mut ptx = || cpu_ns(times, || (0..times).for_each(|_| self.run_ptx())) / 1e3;
        let mut twin = || cpu_ns(times, || (0..times).for_each(|_| self.run_twin())) / 1e3;
        let [ptx, twin] = interleave(rounds, [&mut ptx, &mut twin]);
        let (what, is_met) = (format!("PTX of {what}"), |ratio| Some(ratio <= 20.0));
        table.compare(&what, "µs", &ptx, ("twin", &twin), "ratio ≤ 20", is_met);
    }
}

/// Returns elements that live as long as the process.
fn elements(n: usize) -> &'static mut [f32] {
    (0..n).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>().leak()
}

fn main() {
    let options = Options::from_command_line();
    let table = Table::new("ptx: the executor of PTX, by processor time of one thread");
    table.note(&format!("PTX runs with {}", warpline_ptx::vector_instructions()));
    for (n, size) in [(100_000, "10^5"), (1_000_000, "10^6"), (10_000_000, "10^7")] {
        let (rounds, times) = (options.rounds(31), options.scaled(1_000_000 / n));
        let config = || launch::elements(n as u64);
        let read = || Argument::slice(elements(n), false);
        let written = || Argument::slice(elements(n), true);
        let size_of = || Argument::size(n);
        let relu = Call::new(&kernels::RELU, config(), vec![size_of(), read(), written()]);
        relu.compare(&table, &format!("relu, {size} elements"), rounds, times.max(1));
        let operands = vec![size_of(), size_of(), read(), read(), written()];
        let add = Call::new(&kernels::ADD, config(), operands);
        add.compare(&table, &format!("add, {size} elements"), rounds, times.max(1));
        // A factor of 1e-3 keeps the sum finite, however often it runs.
        let operands = vec![size_of(), Argument::float(1e-3), read(), written()];
        let axpy = Call::new(&kernels::AXPY, config(), operands);
        axpy.compare(&table, &format!("axpy, {size} elements"), rounds, times.max(1));
        if n == 1_000_000 {
            relu.compare_checks(&table, &format!("relu, {size} elements"), options.rounds(9));
            axpy.compare_checks(&table, &format!("axpy, {size} elements"), options.rounds(9));
        }
    }
    for (n, rounds) in [(256, 15), (512, 7), (1024, 3)] {
        let operands = [n, n, n].map(Argument::size).into_iter();
        let operands = operands.chain([Argument::word(0), Argument::word(0)]);
        let matrices = [false, false, true].map(|is_written| Argument::slice(elements(n * n), is_written));
        let operands = operands.chain(matrices).collect();
        let matmul = Call::new(&kernels::MATMUL, launch::product(n as u64, n as u64), operands);
        matmul.compare(&table, &format!("matmul, {n}³"), options.rounds(rounds), 1);
        if n == 256 {
            matmul.compare_checks(&table, &format!("matmul, {n}³"), options.rounds(9));
        }
    }
    let text = ".version 8.0 .target sm_70 .address_size 64 .visible .entry empty(.param .u64 x) { ret; }";
    let empty = Module::new(text).and_then(|module| module.kernel("empty")).expect("PTX");
    let times = options.scaled(10_000);
    let launches = || {
        (0..times).for_each(|_| {
            let memory = black_box(Memory::Regions(Vec::new()));
            // SAFETY: the kernel touches no memory.
            unsafe { empty.launch(&Config::linear(1, 32), &[0; 8], memory) }.expect("it does nothing");
        });
    };
    let [empty] = interleave(options.rounds(31), [&mut || cpu_ns(times, launches) / 1e3]);
    let is_met = Some(empty.median() < 5.0);
    table.row("PTX of an empty kernel, a launch of 32 threads", "µs", &empty, "< 5", None, is_met);
    table.report("PTX of an empty kernel: the fastest launch", "µs", empty.least());
}
