//! How tensors are created, and of which type they are.

use super::sources;
use crate::note::{MOVED, is_moved};
use crate::{contract, refused};
use half::f16;
use std::task::Poll;
use warpline::Result;
use warpline::prelude::*;

contract! {
    /// X6: each batch of a loop is moved and converted by one call.
    async fn a_loop_moves_and_converts_each_batch([one, gpu]) {
        for source in sources(&one)? {
            let batch = |n| Tensor::full([4], n as f32 + 0.5, &source).queued();
            let batches = (0..10).map(batch).collect::<Result<Vec<_>>>()?;
            for dtype in DType::ALL {
                for (n, batch) in batches.iter().enumerate() {
                    let moved = batch.to((dtype, &gpu)).queued()?;
                    assert_eq!((moved.dtype(), moved.device()), (dtype, gpu.clone()));
                    let expected = match dtype {
                        DType::Bool => 1.0,
                        _ if dtype.is_floating_point() => n as f64 + 0.5,
                        _ => n as f64,
                    };
                    assert_eq!(moved.to(DType::F64).to_vec::<f64>().await?, [expected; 4]);
                    assert_eq!(batch.to_vec::<f32>().await?, [n as f32 + 0.5; 4]);
                }
            }
        }
    }

    /// X11: `new` with sizes and with data makes a tensor like its receiver.
    async fn new_tensors_have_the_type_and_device_of_their_receiver([one, gpu]) {
        for cpu in sources(&one)? {
            let x = Tensor::empty([1], &cpu).queued()?;
            let x_gpu = Tensor::empty([1], &gpu).queued()?;
            let n = Tensor::new([0], &cpu).queued()?;

            // In the scope of the other device, which does not matter.
            let filled = gpu.enter(|| x.new_empty([8, 10, 10]).fill_(0.3)).queued()?;
            assert_eq!(
                (filled.shape(), filled.dtype(), filled.device()),
                (&[8, 10, 10][..], DType::F32, cpu.clone())
            );
            assert_eq!(filled.to_vec::<f32>().await?, [0.3; 800]);

            let y = cpu.enter(|| x_gpu.new_empty(x_gpu.shape()).fill_(-5)).queued()?;
            assert_eq!((y.shape(), y.dtype(), y.device()), (&[1][..], DType::F32, gpu.clone()));
            assert_eq!(y.to_vec::<f32>().await?, [-5.0]);

            let z = gpu.enter(|| n.new_tensor([[1, 2, 3]])).queued()?;
            assert_eq!((z.shape(), z.dtype(), z.device()), (&[1, 3][..], DType::I64, cpu));
            assert_eq!(z.to_vec::<i64>().await?, [1, 2, 3]);
        }
    }

    /// X12: `new_full` and `new_tensor` keep the type and device of their receiver.
    async fn new_full_and_new_tensor([one, gpu]) {
        for cpu in sources(&one)? {
            let x = Tensor::empty([1], &cpu).queued()?;
            let full = gpu.enter(|| x.new_full([3, 2], 0.3)).queued()?;
            assert_eq!((full.shape(), full.dtype(), full.device()), (&[3, 2][..], DType::F32, cpu.clone()));
            assert_eq!(full.to_vec::<f32>().await?, [0.3; 6]);

            let x_gpu = Tensor::empty([1], &gpu).queued()?;
            let full = cpu.enter(|| x_gpu.new_full([3, 2], -5)).queued()?;
            assert_eq!((full.shape(), full.dtype(), full.device()), (&[3, 2][..], DType::F32, gpu.clone()));
            assert_eq!(full.to_vec::<f32>().await?, [-5.0; 6]);

            let n = Tensor::new([0], &cpu).queued()?;
            let data = gpu.enter(|| n.new_tensor([[1, 2, 3]])).queued()?;
            assert_eq!((data.shape(), data.dtype(), data.device()), (&[1, 3][..], DType::I64, cpu.clone()));
            assert_eq!(data.to_vec::<i64>().await?, [1, 2, 3]);

            // A factory function follows the current device instead.
            assert_eq!(gpu.enter(|| Tensor::full([3, 2], 0.3, ())).queued()?.device(), gpu);
            // The type of the receiver also wins over that of the numbers.
            let half = Tensor::empty([1], (DType::F16, &gpu)).queued()?;
            let numbers = half.new_tensor([[0.1, 2.0]]).queued()?;
            assert_eq!((numbers.dtype(), numbers.device()), (DType::F16, gpu.clone()));
            let expected = [f16::from_f32(0.1), f16::from_f32(2.0)];
            assert_eq!(numbers.to_vec::<f16>().await?, expected);
        }
    }

    /// X13: `ones_like` and `zeros_like` keep size, type and device.
    async fn ones_like_and_zeros_like([one, gpu]) {
        for cpu in sources(&one)? {
            for (device, other) in [(&cpu, &gpu), (&gpu, &cpu)] {
                for dtype in DType::ALL {
                    let x = Tensor::empty([2, 3], (dtype, device)).queued()?;
                    let (ones, zeros) = other.enter(|| (Tensor::ones_like(&x), Tensor::zeros_like(&x)));
                    for (made, expected) in [(ones, 1.0), (zeros, 0.0)] {
                        let made = made.queued()?;
                        assert_eq!((made.shape(), made.dtype()), (x.shape(), dtype));
                        assert_eq!(made.device(), *device);
                        assert!(!made.shares_memory(&x));
                        assert_eq!(made.to(DType::F64).to_vec::<f64>().await?, [expected; 6]);
                    }
                }
            }
        }
    }

    /// X13, as far as it concerns order: a tensor made like another one reads nothing of it.
    async fn tensors_like_another_one_need_no_edge([device]) {
        let (writes, makes) = (device.new_stream()?, device.new_stream()?);
        let gate = writes.hold()?;
        let x = writes.enter(|| Tensor::full([2, 3], 7, (DType::I16, &device))).queued()?;
        // The write has not run, and no edge orders `makes` after it.
        let error = refused(makes.enter(|| x.add(1))).await;
        assert_eq!(error.kind(), ErrorKind::Unordered, "{error}");
        let made = makes.enter(|| {
            [
                Tensor::ones_like(&x),
                Tensor::zeros_like(&x),
                Tensor::full_like(&x, 5),
                x.new_full([2, 3], 3),
                x.new_ones([2, 3]),
                x.new_zeros([2, 3]),
                x.new_tensor([[4; 3]; 2]),
            ]
        });
        for (made, expected) in made.into_iter().zip([1, 0, 5, 3, 1, 0, 4]) {
            let made = made.await?;
            assert_eq!((made.shape(), made.dtype()), (&[2, 3][..], DType::I16));
            assert_eq!(makes.enter(|| made.to_vec::<i16>()).await?, [expected; 6]);
        }
        // The memory that `empty_like` returns is free to write.
        let empty = makes.enter(|| Tensor::empty_like(&x).fill_(9)).queued()?;
        assert_eq!(makes.enter(|| empty.to_vec::<i16>()).await?, [9; 6]);
        gate.open();
        assert_eq!(writes.enter(|| x.to_vec::<i16>()).await?, [7; 6]);
    }

    /// X14: the default type and device, changed twice. Scopes set them, and restore them.
    async fn the_default_type_and_device_belong_to_scopes([one, gpu]) {
        let made = || {
            let x = Tensor::new([1.2, 3.0], ()).queued().unwrap();
            let y = Tensor::empty([2], ()).queued().unwrap();
            assert_eq!((x.dtype(), x.device()), (y.dtype(), y.device()));
            (x.dtype(), x.device())
        };
        for cpu in sources(&one)? {
            cpu.enter(|| {
                assert_eq!(made(), (DType::F32, cpu.clone()));
                gpu.enter(|| {
                    assert_eq!(made(), (DType::F32, gpu.clone()));
                    DType::F64.enter(|| assert_eq!(made(), (DType::F64, gpu.clone())));
                    assert_eq!(made(), (DType::F32, gpu.clone()));
                });
                assert_eq!(made(), (DType::F32, cpu.clone()));
            });
            // Integers and truth values have no default type, and a named type wins.
            DType::F64.enter(|| {
                let dtype = |made: Pending<Tensor>| made.queued().unwrap().dtype();
                assert_eq!(dtype(Tensor::new([1, 2], &cpu)), DType::I64);
                assert_eq!(dtype(Tensor::new([true], &cpu)), DType::Bool);
                assert_eq!(dtype(Tensor::new([1.0], (DType::F16, &cpu))), DType::F16);
                assert_eq!(dtype(Tensor::randn([2], &cpu)), DType::F64);
                // A quotient of integers is of the default type.
                assert_eq!(dtype(Tensor::new([1, 2], &cpu).div(2)), DType::F64);
            });
            cpu.synchronize().await?;
        }
    }

    /// X14, in a task: a scope holds at every poll of its own future, and not in between.
    async fn the_default_type_of_a_task_holds_across_its_awaits([device]) {
        let task = |dtype: DType| {
            let device = device.clone();
            dtype.scope(move || async move {
                let first = Tensor::zeros([1], &device).await?.dtype();
                futures::pending!();
                Ok::<_, Error>([first, Tensor::zeros([1], &device).await?.dtype()])
            })
        };
        let mut one = tokio_test::task::spawn(task(DType::F64));
        let mut two = tokio_test::task::spawn(task(DType::BF16));
        let (mut of_one, mut of_two) = (None, None);
        while of_one.is_none() || of_two.is_none() {
            if of_one.is_none()
                && let Poll::Ready(types) = one.poll()
            {
                of_one = Some(types?);
            }
            if of_two.is_none()
                && let Poll::Ready(types) = two.poll()
            {
                of_two = Some(types?);
            }
            assert_eq!(DType::default_float(), DType::F32);
            // Under a seeded schedule, ops run while this function waits.
            device.synchronize().await?;
        }
        assert_eq!((of_one, of_two), (Some([DType::F64; 2]), Some([DType::BF16; 2])));
    }

    /// X17: the moves and conversions of one tensor keep its values, and one to where it is does
    /// nothing. The test binary `semantics` has the moves by name.
    async fn moves_and_conversions_keep_the_values([one, gpu]) {
        for cpu in sources(&one)? {
            let x = Tensor::new(MOVED, &cpu).queued()?;
            let steps: [(&str, Pending<Tensor>, DType, &Device); 6] = [
                ("to a device", x.to(&gpu), DType::F32, &gpu),
                ("there and back", x.to(&gpu).to(&cpu), DType::F32, &cpu),
                ("to a type", x.to(DType::F64), DType::F64, &cpu),
                ("back to a type", x.to(DType::F64).to(DType::F32), DType::F32, &cpu),
                ("to both", x.to((DType::F64, &gpu)), DType::F64, &gpu),
                ("to another tensor's", x.to((DType::F64, &gpu)).to(&x), DType::F32, &cpu),
            ];
            for (step, moved, dtype, device) in steps {
                is_moved(step, moved, dtype, device).await?;
            }
            // A conversion alone is a copy, also there and back.
            assert!(!x.to(DType::F64).to(DType::F32).queued()?.shares_memory(&x));
        }
    }
}
