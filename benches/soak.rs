//! Ten million ops over ten thousand consecutive leases that all read the same weights. Most ops
//! are never awaited.
//!
//! Resident memory and all bookkeeping of the runtime must stay flat.

mod support;

use std::time::Instant;
use support::process::{resident_kib, threads};
use support::{Figure, ONE, Options, Sample, Table, counting, touch_three};

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

/// The number of places in the stream pool.
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
        let books = device.bookkeeping();
        for (what, unit, figure) in [
            ("resident memory", "KiB", Figure::count(resident)),
            ("heap", "KiB", Figure::count(live)),
            ("threads", "", Figure::count(threads())),
            ("clock entries", "", Figure::count(books.clock_entries)),
            ("memory blocks", "", Figure::count(books.memory_blocks)),
            ("watched timelines", "", Figure::count(books.watched_timelines)),
            ("device memory in use", "KiB", Figure::count(memory.allocated_bytes / 1024)),
        ] {
            table.report(&format!("soak, {name}: {what}"), unit, figure);
        }
        (resident, books, a.bookkeeping())
    };
    let start = Instant::now();
    let mut early = None;
    let mut most = (0, 0);
    let (mut most_uses, mut waits) = (0, Vec::new());
    futures::executor::block_on(async {
        for at in 0..leases {
            let lease = pool.lease().await.expect("a lease");
            lease.wait_stream(&owner);
            // Each lease also allocates and frees memory of its own.
            let mut own = lease.alloc::<f32>(1024).expect("4 KiB");
            for op in 0..ops {
                if op % 100 == 0 {
                    own = lease.alloc::<f32>(1024).expect("4 KiB");
                }
                lease.launch(touch_three(0.5, &a, &b, &own), ONE).detach();
            }
            if at % 100 == 99 {
                lease.synchronize().await.expect("it runs");
                let start = Instant::now();
                drop(owner.wait_for(&a));
                waits.push(start.elapsed().as_nanos() as f64);
            }
            most.0 = most.0.max(a.bookkeeping().records);
            most_uses = most_uses.max(a.bookkeeping().uses);
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
            "soak, {} ops over {leases} leases: growth of resident memory after the first tenth",
            leases * ops
        ),
        "KiB",
        growth,
        "< 2048",
        None,
        Some(growth < 2048.0),
    );
    table.row(
        "soak: the most records of one weight",
        "",
        Figure::count(most.0),
        &format!("≤ {} (twice the live streams, and what was written)", 2 * POOL + 4),
        None,
        Some(most.0 <= 2 * POOL + 4),
    );
    let goal = format!("≤ {} (twice the live streams)", 2 * POOL + 4);
    let uses = Figure::count(most_uses);
    table.row(
        "soak: the most streams that a weight knows",
        "",
        uses,
        &goal,
        None,
        Some(most_uses <= 2 * POOL + 4),
    );
    let waits = Sample(waits.split_off(waits.len() / 2));
    table.report("soak, second half: a wait for all uses of one weight", "ns", &waits);
    let (slots, goal) = (Figure::count(most.1), format!("≤ {}", POOL + 2));
    table.row("soak: stream slots ever used", "", slots, &goal, None, Some(most.1 <= POOL + 2));
    table.report("soak, at the end: live streams", "", Figure::count(books.live_streams));
    table.report("soak: an op, with everything", "ns", took.as_nanos() as f64 / (leases * ops) as f64);
}
