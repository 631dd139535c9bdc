//! Ten million ops over ten thousand leases, one after the other, that all read the same weights. Most are never awaited.
//!
//! What has to stay flat: resident memory, and every book the runtime keeps.

mod support;

use std::time::Instant;
use support::measure::short;
use support::process::{resident_kib, threads};
use support::{ONE, Options, Table, counting, touch_three};

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

/// Leases at a time.
const POOL: usize = 8;

fn main() {
    let options = Options::from_command_line();
    let (leases, ops) = if options.quick { (1_000, 100) } else { (10_000, 1_000) };
    let table = Table::new("soak: many ops, many leases, the same weights");
    let (_runtime, device) = support::cpu();
    let owner = device.new_stream().expect("a stream");
    let [a, b] = [(); 2].map(|()| owner.alloc::<f32>(1024).expect("4 KiB"));
    owner.fill(&a, 1.0).detach();
    owner.fill(&b, 2.0).detach();
    let pool = device.stream_pool(POOL).unwrap();
    let figures = |name: &str| {
        let (resident, live) = (resident_kib(), counting::live_bytes() / 1024);
        let memory = device.memory_stats();
        table.note(
            &format!("{name}: resident KiB, heap KiB, threads"),
            &format!("{resident}, {live}, {}", threads()),
        );
        table.note(
            &format!("{name}: books"),
            &format!(
                "{:?}, weights {:?} and {:?}; device memory {} KiB in use of {} KiB",
                device.bookkeeping(),
                a.bookkeeping(),
                b.bookkeeping(),
                memory.allocated_bytes / 1024,
                memory.reserved_bytes / 1024
            ),
        );
        (resident, device.bookkeeping(), a.bookkeeping())
    };
    let start = Instant::now();
    let mut early = None;
    let mut most = (0, 0);
    futures::executor::block_on(async {
        for at in 0..leases {
            let lease = pool.lease().await.expect("a lease");
            lease.wait_stream(&owner);
            // Memory of the lease's own comes and goes.
            let mut own = lease.alloc::<f32>(1024).expect("4 KiB");
            for op in 0..ops {
                if op % 100 == 0 {
                    own = lease.alloc::<f32>(1024).expect("4 KiB");
                }
                lease.launch(touch_three(0.5, &a, &b, &own), ONE).detach();
            }
            if at % 100 == 99 {
                lease.synchronize().await.expect("it runs");
            }
            most.0 = most.0.max(a.bookkeeping().records);
            most.1 = most.1.max(device.bookkeeping().stream_slots);
            if at == leases / 10 {
                early = Some(figures("a tenth in"));
            }
        }
        device.synchronize().await.expect("it runs");
    });
    let took = start.elapsed();
    let (resident, books, _) = figures("at the end");
    let (early_resident, ..) = early.expect("a tenth was reached");
    let growth = resident as f64 - early_resident as f64;
    table.row(
        &format!(
            "{} ops over {leases} leases: growth of resident memory after the first tenth, KiB",
            leases * ops
        ),
        &short(growth),
        &format!("{early_resident} then"),
        "",
        "",
        "flat (less than 2048)",
        Some(growth < 2048.0),
    );
    table.row(
        "the most records of one weight",
        &most.0.to_string(),
        "",
        "",
        "",
        &format!("≤ {} (twice the live streams, and what was written)", 2 * POOL + 4),
        Some(most.0 <= 2 * POOL + 4),
    );
    table.row(
        "stream slots ever used",
        &most.1.to_string(),
        "",
        "",
        "",
        &format!("≤ {}", POOL + 2),
        Some(most.1 <= POOL + 2),
    );
    table.note("live streams at the end", &books.live_streams.to_string());
    table.note("ns an op, with everything", &short(took.as_nanos() as f64 / (leases * ops) as f64));
}
