//! Host functions in stream order.

use crate::support::says;
use crate::{contract, refused};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use warpline::kernels;
use warpline::prelude::*;

contract! {
    async fn a_host_function_runs_between_what_was_enqueued_before_and_after([device]) {
        let stream = device.new_stream()?;
        let (x, count) = (stream.alloc::<f32>(4)?, Arc::new(AtomicU32::new(0)));
        drop(stream.fill(&x, 1.0));
        let before = stream.read(&x);
        let (one, two) = (count.clone(), count.clone());
        let first = stream.call(move || one.fetch_add(1, Ordering::SeqCst));
        drop(stream.fill(&x, 2.0));
        let second = stream.call(move || two.fetch_add(1, Ordering::SeqCst));
        assert_eq!(stream.read(&x).await?, [2.0; 4]);
        assert_eq!(count.load(Ordering::SeqCst), 2);
        assert_eq!((before.await?, first.await?, second.await?), (vec![1.0; 4], 0, 1));
    }

    async fn its_value_is_what_the_pending_gives([device]) {
        let stream = device.new_stream()?;
        assert_eq!(stream.call(|| "text".to_owned()).await?, "text");
        let failed: Result<(), String> = stream.call(|| Err("mine".to_owned())).await?;
        assert_eq!(failed.unwrap_err(), "mine", "an error of the function's own is a value like any other");
    }

    async fn a_panic_fails_its_call_and_what_was_put_after_it([device]) {
        let stream = device.stream().label("work").build()?;
        let [after, beside] = [device.new_stream()?, device.new_stream()?];
        let x = stream.alloc::<f32>(4)?;
        drop(stream.fill(&x, 1.0));
        let before = stream.read(&x);
        let gate = stream.hold()?;
        let panicked = stream.call(|| -> u32 { panic!("on purpose") });
        let filled = stream.fill(&x, 2.0);
        after.wait_stream(&stream);
        let behind = after.read(&x);
        let looked_at_late = stream.read(&x);
        let event = after.record_event();
        gate.open();

        assert_eq!((before.await?, beside.call(|| 5).await?), (vec![1.0; 4], 5));
        for error in [
            refused(filled).await,
            refused(behind).await,
            refused(event.synchronize()).await,
            refused(after.synchronize()).await,
            refused(stream.call(|| ())).await,
        ] {
            assert!(error.is_inherited(), "{error}");
            says(&error, ErrorKind::Panicked, &["is behind a host function that panicked: call on \
                stream \"work\" ("]);
        }
        let error = refused(panicked).await;
        says(&error, ErrorKind::Panicked, &["call on stream \"work\" (tests/contract/host_functions.rs:", "panicked at ticket 4: on purpose"]);
        assert!(!error.is_inherited());

        assert!(refused(looked_at_late).await.is_inherited(), "it was enqueued before anybody looked");
        assert_eq!(stream.read(&x).await?, [2.0; 4]);
        after.wait_stream(&stream);
        assert_eq!(after.read(&x).await?, [2.0; 4]);
        assert!(device.fault().is_none());
    }

    async fn a_panic_that_nobody_awaits_is_returned_by_synchronize_once([device]) {
        let stream = device.new_stream()?;
        let early = stream.call(|| panic!("early"));
        stream.record_event().synchronize().await.unwrap_err();
        drop(early);
        drop(stream.call(|| panic!("late")));
        let error = refused(stream.synchronize()).await;
        says(&error, ErrorKind::Panicked, &["early"]);
        assert!(!error.is_inherited());
        says(&refused(stream.synchronize()).await, ErrorKind::Panicked, &["late"]);
        stream.synchronize().await?;
    }

    async fn a_synchronize_returns_a_panic_whose_call_is_still_held_and_so_ends_it([device]) {
        let stream = device.new_stream()?;
        let panicked = stream.call(|| panic!("on purpose"));
        let before = stream.call(|| 5);
        let error = refused(stream.synchronize()).await;
        assert!(!error.is_inherited(), "{error}");
        stream.synchronize().await?;
        assert_eq!(stream.call(|| 6).await?, 6);
        assert!(refused(before).await.is_inherited());
        assert_eq!(refused(panicked).await.kind(), ErrorKind::Panicked);
    }

    async fn a_synchronize_that_fails_with_anothers_panic_observes_nothing([device]) {
        let [s, t, v] = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
        let panicked = s.call(|| panic!("on purpose"));
        t.wait_stream(&s);
        assert!(refused(t.synchronize()).await.is_inherited());
        v.wait_stream(&s);
        assert!(refused(v.call(|| ())).await.is_inherited());
        refused(panicked).await;
    }

    async fn it_is_called_also_when_nobody_waits_for_it([device]) {
        let stream = device.new_stream()?;
        let count = Arc::new(AtomicU32::new(0));
        for _ in 0..10 {
            let count = count.clone();
            drop(stream.call(move || count.fetch_add(1, Ordering::SeqCst)));
        }
        stream.synchronize().await?;
        assert_eq!(count.load(Ordering::SeqCst), 10);
        assert_eq!(Arc::strong_count(&count), 1, "and the closures are gone");
    }
}

/// More functions wait than there are workers. On a GPU they share a thread as well.
#[test]
fn functions_that_wait_stop_no_kernel_and_no_copy() {
    for mode in [OrderMode::Deny, OrderMode::Warn, OrderMode::Wait, OrderMode::Off] {
        let runtime = Runtime::builder().order(mode).workers(1).cpu_devices(2).build().unwrap();
        let [device, another] = [0, 1].map(|n| runtime.device(DeviceId::Cpu(n)).unwrap());
        let waiting = [device.new_stream().unwrap(), device.new_stream().unwrap()].map(|stream| {
            let (go, gone) = std::sync::mpsc::channel();
            (stream.call(move || gone.recv().unwrap()), go)
        });
        let stream = device.new_stream().unwrap();
        let x = stream.alloc::<f32>(4).unwrap();
        stream.fill(&x, 1.0).blocking_wait().unwrap();
        stream.launch(kernels::relu(4, &x, &x), LaunchConfig::for_elements(4u32)).blocking_wait().unwrap();
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [1.0; 4], "{mode:?}");
        assert_eq!(another.new_stream().unwrap().call(|| 7).blocking_wait().unwrap(), 7);
        let behind = stream.call(|| 5);
        for (called, go) in waiting {
            go.send(3).unwrap();
            assert_eq!(called.blocking_wait().unwrap(), 3);
        }
        assert_eq!(behind.blocking_wait().unwrap(), 5);
    }
}
