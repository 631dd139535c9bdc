//! Tickets, and the positions of allocations and closed streams. The program decides them, not the
//! device's speed.
//!
//! Each program runs twice: once with earlier work that has long finished, and once with earlier
//! work that is still held back.

use crate::contract;
use warpline::prelude::*;
use warpline::testing::Gate;

/// 12 MiB of `u32`: the allocator gives blocks over 10 MiB a segment of their own.
const LARGE: usize = 3 << 20;

/// True if the earlier work has finished when the program continues.
const SPEEDS: [bool; 2] = [true, false];

/// Opens the gate and waits for the stream without observing it, if `fast`. Otherwise returns the
/// closed gate.
async fn run_dry(stream: &Stream, gate: Gate, fast: bool) -> warpline::Result<Option<Gate>> {
    if fast {
        gate.open();
        stream.record_event().synchronize().unobserved().await?;
        return Ok(None);
    }
    Ok(Some(gate))
}

contract! {
    async fn an_allocation_counts_behind_a_wait_whether_that_had_to_wait_or_not([device]) {
        let mut seen = Vec::new();
        for fast in SPEEDS {
            let [s, t, u] = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
            let gate = u.hold()?;
            let gate = run_dry(&u, gate, fast).await?;
            let waited = s.wait_stream(&u);
            drop(gate);
            waited.await?;
            let x = s.alloc::<u32>(8)?;
            t.fill(&x, 1).await?;
            seen.push((s.issued(), t.issued()));
        }
        assert_eq!(seen, [(1, 1); 2]);
    }

    async fn an_event_between_a_wait_and_an_allocation_covers_both([device]) {
        let mut seen = Vec::new();
        for fast in SPEEDS {
            let [s, t, u] = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
            let gate = u.hold()?;
            let gate = run_dry(&u, gate, fast).await?;
            s.wait_stream(&u);
            let event = s.record_event();
            let x = s.alloc::<u32>(8)?;
            t.wait_event(&event);
            let filled = t.fill(&x, 1);
            drop(gate);
            filled.await?;
            seen.push((s.issued(), t.issued()));
        }
        assert_eq!(seen, [(1, 2); 2]);
    }

    async fn memory_that_is_still_in_use_elsewhere_changes_no_verdict_and_is_waited_for([device]) {
        let mut seen = Vec::new();
        for fast in SPEEDS {
            device.empty_cache();
            let [s, t, v] = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
            let cached = [v.alloc::<u32>(LARGE)?, v.alloc::<u32>(LARGE)?];
            let gate = v.hold()?;
            cached.iter().for_each(|x| drop(v.fill(x, 7)));
            let addresses = cached.each_ref().map(|x| x.device_ptr().0);
            drop(cached);
            let gate = run_dry(&v, gate, fast).await?;
            s.synchronize().await?;
            let x = s.alloc::<u32>(LARGE)?;
            assert!(addresses.contains(&x.device_ptr().0), "the allocator had memory to hand out again");
            let tickets = s.issued();
            drop(t.fill(&x, 1));
            let mut filled = t.record_event().synchronize();
            if !fast {
                assert!(!filled.query()?, "it waits for what the memory was used for before");
            }
            drop(gate);
            filled.await?;
            s.wait_stream(&v).await?;
            assert_eq!(s.read(&x.slice(LARGE - 8..)?).await?, [1; 8]);
            seen.push((tickets, t.issued()));
        }
        assert_eq!(seen, [(0, 1); 2]);
    }

    async fn a_wait_for_what_the_host_has_observed_takes_no_ticket([device]) {
        let [a, b, c] = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
        let x = a.alloc::<u32>(8)?;
        drop(a.fill(&x, 1));
        b.wait_stream(&a);
        b.fill(&x, 2).await?;
        c.wait_stream(&a).await?;
        assert_eq!((a.issued(), b.issued(), c.issued()), (1, 2, 0));
    }

    async fn what_a_closed_stream_did_comes_before_whatever_touches_its_memory([device]) {
        let pool = device.stream_pool(4)?;
        let mut seen = Vec::new();
        for fast in SPEEDS {
            let (lease, t) = (pool.lease().await?, device.new_stream()?);
            let (x, y) = (t.alloc::<u32>(8)?, t.alloc::<u32>(8)?);
            drop((t.fill(&x, 1), t.fill(&y, 1)));
            lease.wait_stream(&t);
            let gate = lease.hold()?;
            drop((lease.fill(&x, 2), lease.copy_buffer(&y, &x)));
            let id = lease.id();
            let gate = run_dry(&lease, gate, fast).await?;
            drop(lease);
            let read = t.read(&x);
            drop(t.fill(&y, 3));
            let mut behind = t.record_event().synchronize();
            if !fast {
                assert!(!behind.query()?, "an edge was added");
            }
            drop(gate);
            behind.await?;
            assert_eq!((read.await?, t.read(&y).await?), (vec![2; 8], vec![3; 8]));
            assert_ne!(id, t.id());
            seen.push(t.issued());
        }
        assert_eq!(seen, [5; 2]);
    }

    async fn a_wait_for_memory_waits_for_closed_streams_too_and_takes_one_ticket([device]) {
        let mut seen = Vec::new();
        for fast in SPEEDS {
            let [one, two, t] = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
            let x = one.alloc::<u32>(8)?;
            let mut gates = vec![one.hold()?];
            drop(one.fill(&x, 1));
            two.wait_stream(&one);
            drop(two.read(&x));
            if fast {
                gates.drain(..).for_each(Gate::open);
                two.record_event().synchronize().unobserved().await?;
            }
            drop((one, two));
            let mut waited = t.wait_for(&x).into_future();
            let done = waited.query()?;
            assert!(fast || !done);
            drop(gates);
            waited.await?;
            assert_eq!(t.read(&x).await?, [1; 8]);
            seen.push(t.issued());
        }
        assert_eq!(seen, [2; 2]);
    }

    async fn what_a_closed_stream_had_waited_for_is_not_ordered_by_its_end([device]) {
        for fast in SPEEDS {
            let [s, t, lease] = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
            let x = s.alloc::<u32>(8)?;
            let gate = s.hold()?;
            drop(s.fill(&x, 1));
            lease.wait_stream(&s);
            let gate = run_dry(&s, gate, fast).await?;
            if fast {
                lease.record_event().synchronize().unobserved().await?;
            }
            drop(lease);
            assert_eq!(crate::refused(t.read(&x)).await.kind(), ErrorKind::Unordered);
            drop(gate);
        }
    }

    async fn awaiting_an_op_waits_for_nothing_that_comes_behind_it([device]) {
        // Each function enqueues something between the awaited op and the next one, so the marker
        // of the awaited op has to come before it.
        type Between = fn(&Stream, &Stream) -> Option<Pending<()>>;
        let betweens: [Between; 4] = [
            |_, _| None,
            |stream, idle| {
                stream.wait_stream(idle);
                None
            },
            |stream, idle| Some(stream.wait_stream(idle).into_future()),
            |stream, _| Some(stream.record_event().synchronize()),
        ];
        for between in betweens {
            for by_edge in [false, true] {
                let [stream, idle, slow] = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
                let (x, y) = (stream.alloc::<u32>(8)?, stream.alloc::<u32>(8)?);
                slow.wait_stream(&stream);
                let awaited = stream.fill(&x, 1);
                let also = between(&stream, &idle);
                let gate = slow.hold()?;
                drop(slow.fill(&y, 1));
                if by_edge {
                    // The program has no handle to the stream any more, so the runtime adds the
                    // edge.
                    drop(slow);
                } else {
                    stream.wait_stream(&slow);
                }
                drop(stream.fill(&y, 2));
                awaited.await?;
                if let Some(also) = also {
                    also.await?;
                }
                gate.open();
                assert_eq!(stream.read(&y).await?, [2; 8]);
            }
        }
    }

    async fn awaiting_an_op_does_not_wait_for_memory_that_a_later_one_gets([device]) {
        device.empty_cache();
        let [s, v] = [device.new_stream()?, device.new_stream()?];
        let y = s.alloc::<u32>(8)?;
        let cached = [v.alloc::<u32>(LARGE)?, v.alloc::<u32>(LARGE)?];
        let gate = v.hold()?;
        cached.iter().for_each(|x| drop(v.fill(x, 7)));
        drop(cached);
        let awaited = s.fill(&y, 2);
        let x = s.alloc::<u32>(LARGE)?;
        drop(s.fill(&x, 2));
        awaited.await?;
        gate.open();
        s.synchronize().await?;
    }

    async fn a_wait_during_foreign_work_takes_over_no_edge_of_it([device]) {
        let [closed, s, t] = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
        let (x, y) = (closed.alloc::<u32>(8)?, closed.alloc::<u32>(8)?);
        let gate = closed.hold()?;
        drop((closed.fill(&x, 1), closed.fill(&y, 1)));
        drop(closed);
        let nothing: [&Buffer<u32>; 0] = [];
        let mut filled = None;
        // SAFETY: the closure enqueues nothing on `s`.
        let foreign = unsafe {
            s.external(warpline::reads(nothing), warpline::writes([&x]), |_| {
                t.wait_stream(&s);
                filled = Some(t.fill(&y, 2));
            })
        };
        let mut filled = filled.expect("the closure was called");
        assert!(!filled.query()?, "it comes after what the closed stream does");
        gate.open();
        filled.await?;
        foreign.await?;
        assert_eq!(t.read(&y).await?, [2; 8]);
    }

    async fn memory_of_foreign_work_in_the_making_is_refused_to_its_thread([device]) {
        let [s, t] = [device.new_stream()?, device.new_stream()?];
        let x = s.alloc::<u32>(8)?;
        let nothing: [&Buffer<u32>; 0] = [];
        let (mut lease, mut filled) = (None, None);
        let pool = device.stream_pool(1)?;
        lease.replace(pool.lease().await?);
        let stream = lease.as_deref().expect("it was leased").clone();
        stream.wait_stream(&s);
        // SAFETY: the closure enqueues nothing.
        let foreign = unsafe {
            stream.external(warpline::reads(nothing), warpline::writes([&x]), |_| {
                lease = None;
                filled = Some(t.fill(&x, 2));
            })
        };
        let error = crate::refused(filled.expect("the closure was called")).await;
        assert_eq!(error.kind(), ErrorKind::Reentrant, "{error}");
        drop(foreign);
        assert!(t.fill(&x, 2).await.is_ok());
    }

    async fn foreign_work_takes_one_ticket_and_a_refused_one_none([device]) {
        let [s, t] = [device.new_stream()?, device.new_stream()?];
        let x = s.alloc::<u32>(8)?;
        drop(s.fill(&x, 1));
        let nothing: [&Buffer<u32>; 0] = [];
        let foreign = |stream: &Stream| {
            // SAFETY: the closure enqueues nothing.
            unsafe { stream.external(warpline::reads([&x]), warpline::writes(nothing), |_| ()) }
        };
        assert_eq!(crate::refused(foreign(&t)).await.kind(), ErrorKind::Unordered);
        foreign(&s).await?;
        assert_eq!((s.issued(), t.issued()), (2, 0));
    }
}

#[test]
fn every_order_mode_runs_what_touches_a_closed_streams_memory_after_it() {
    for order in [OrderMode::Deny, OrderMode::Warn, OrderMode::Wait] {
        let builder = warpline::Runtime::builder().order(order);
        warpline::testing::for_each_seed_on(builder, 0..40, |devices| async move {
            let [lease, t] = [devices[0].new_stream()?, devices[0].new_stream()?];
            let x = t.alloc::<u32>(8)?;
            lease.wait_stream(&t);
            for value in 1..5 {
                drop(lease.fill(&x, value));
            }
            drop(lease);
            assert_eq!(t.read(&x).await?, [4; 8]);
            Ok(())
        });
    }
}
