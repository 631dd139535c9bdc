//! A kernel with a body of PTX, and its launch with checks.

use warpline_ptx::{Checks, Config, Fault, FaultKind, Memory, Module, Region};

/// The words of the operand `data`.
pub(crate) const WORDS: usize = 512;

/// A launch of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch<'a> {
    /// The body. `%t` is the number of the thread in its block, `%b` that of the block, `%data` the
    /// address of the operand and `%own` that of the thread's word in it. `%word` is the address of
    /// the thread's word in the shared memory `area`, `%near` that of another lane of its warp, and
    /// `%far` that of a lane of another warp. `%there` may have any address.
    pub(crate) body: &'a str,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    /// The blocks of a cluster.
    pub(crate) cluster: u32,
    pub(crate) checks: Checks,
    pub(crate) seed: Option<u64>,
    /// True if the operand is undefined at the start.
    pub(crate) is_undefined: bool,
}

/// Adds a use of its value to each load, since one whose value is dropped is not reported.
fn with_uses(body: &str) -> String {
    let line = |line: &str| {
        let result = line.split_once("ld.").and_then(|(_, load)| load.split_once(' '));
        let result = result
            .map(|(_, operands)| operands.trim_start_matches('{').split(',').next().unwrap_or_default());
        match result {
            Some(register) if register.starts_with("%r") => {
                format!("{line} st.local.u32 [mine+60], {register};")
            }
            Some(register) if register.starts_with("%h") => {
                format!("{line} st.local.u16 [mine+60], {register};")
            }
            _ => line.to_owned(),
        }
    };
    body.lines().map(line).collect::<Vec<_>>().join("\n")
}

impl<'a> Launch<'a> {
    /// A launch with all checks.
    pub(crate) fn new(blocks: u32, threads: u32, body: &'a str) -> Self {
        Launch { body, blocks, threads, cluster: 1, checks: Checks::ALL, seed: None, is_undefined: false }
    }

    pub(crate) fn run(self) -> Result<(), Box<Fault>> {
        let text = format!(
            "\
.version 8.5
.target sm_90
.address_size 64
.shared .align 16 .b8 area[1024];
.visible .entry main(.param .u64 main_data)
{{
.local .align 16 .b8 mine[64];
.reg .pred %p<8>;
.reg .b16 %h<8>;
.reg .b32 %r<16>;
.reg .b64 %rd<16>;
.reg .b32 %t, %b, %n;
.reg .b64 %data, %own, %word, %near, %far, %there;
ld.param.u64 %data, [main_data];
mov.u32 %t, %tid.x;
mov.u32 %b, %ctaid.x;
mov.u32 %n, %ntid.x;
mad.lo.u32 %r0, %b, %n, %t;
mad.wide.u32 %own, %r0, 4, %data;
mov.u64 %rd0, area;
mad.wide.u32 %word, %t, 4, %rd0;
xor.b32 %r0, %t, 5;
mad.wide.u32 %near, %r0, 4, %rd0;
xor.b32 %r0, %t, 32;
mad.wide.u32 %far, %r0, 4, %rd0;
{}
}}
",
            with_uses(self.body)
        );
        let module = Module::new(text.clone()).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let kernel = module.kernel("main").unwrap_or_else(|error| panic!("{error}\n{text}"));
        let mut data = vec![0u32; WORDS];
        let start = data.as_mut_ptr().expose_provenance() as u64;
        let region = Region {
            is_writable: true,
            is_undefined: self.is_undefined,
            ..Region::new("data", start, 4 * WORDS as u64, 4)
        };
        let config = Config {
            is_cooperative: true,
            seed: self.seed,
            checks: self.checks,
            threads: 3,
            cluster: Some([self.cluster, 1, 1]),
            ..Config::linear(self.blocks, self.threads)
        };
        // SAFETY: launch needs a region that is valid and that nothing else accesses meanwhile: it
        // is the vector above.
        let result = unsafe { kernel.launch(&config, &start.to_le_bytes(), Memory::Regions(vec![region])) };
        result.map(drop)
    }

    /// Runs the body in several orders of warps, and returns what fails in each.
    pub(crate) fn faults(self) -> Vec<Option<FaultKind>> {
        let seeds = [None, Some(1), Some(2), Some(3)];
        seeds.map(|seed| Launch { seed, ..self }.run().err().map(|fault| fault.kind)).into()
    }

    /// Checks that nothing fails in any order.
    pub(crate) fn passes(self) {
        for fault in self.faults() {
            assert!(
                fault.is_none(),
                "{}\n{}",
                fault.as_ref().map_or(String::new(), ToString::to_string),
                self.body
            );
        }
    }

    /// Checks that each order fails as `is_it` says.
    pub(crate) fn fails(self, is_it: impl Fn(&FaultKind) -> bool) {
        for fault in self.faults() {
            assert!(fault.as_ref().is_some_and(&is_it), "{fault:?}\n{}", self.body);
        }
    }
}
