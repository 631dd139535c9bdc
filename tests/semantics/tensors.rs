//! How tensors are created, and of which type they are.

use crate::support::software::in_child;
use crate::support::{block_on, streams, unordered};
use half::f16;
use warpline::Result;
use warpline::prelude::*;

/// Returns the CPU and the first GPU.
fn cpu_and_gpu() -> [Device; 2] {
    ["cpu", "cuda:0"].map(|name| Device::open(name).unwrap())
}

/// X6: each batch of a loop is moved and converted by one call.
#[test]
fn a_loop_moves_and_converts_each_batch() {
    in_child(&[], || {
        let [cpu, gpu] = cpu_and_gpu();
        let batches: Vec<_> =
            (0..10).map(|n| Tensor::full([4], n as f32 + 0.5, &cpu).queued().unwrap()).collect();
        for dtype in DType::ALL {
            for (n, batch) in batches.iter().enumerate() {
                let moved = batch.to((dtype, &gpu)).queued().unwrap();
                assert_eq!((moved.dtype(), moved.device()), (dtype, gpu.clone()));
                let expected = match dtype {
                    DType::Bool => 1.0,
                    _ if dtype.is_floating_point() => n as f64 + 0.5,
                    _ => n as f64,
                };
                assert_eq!(moved.to(DType::F64).to_vec::<f64>().blocking_wait().unwrap(), [expected; 4]);
                assert_eq!(batch.to_vec::<f32>().blocking_wait().unwrap(), [n as f32 + 0.5; 4]);
            }
        }
    });
}

/// X11: `new` with sizes and with data makes a tensor like its receiver.
#[test]
fn new_tensors_have_the_type_and_device_of_their_receiver() {
    in_child(&[], || {
        let [cpu, gpu] = cpu_and_gpu();
        let x = Tensor::empty([1], &cpu).queued().unwrap();
        let x_gpu = Tensor::empty([1], &gpu).queued().unwrap();
        let n = Tensor::new([0], &cpu).queued().unwrap();

        // In the scope of the other device, which does not matter.
        let filled = gpu.enter(|| x.new_empty([8, 10, 10]).fill_(0.3)).queued().unwrap();
        assert_eq!(
            (filled.shape(), filled.dtype(), filled.device()),
            (&[8, 10, 10][..], DType::F32, cpu.clone())
        );
        assert_eq!(filled.to_vec::<f32>().blocking_wait().unwrap(), [0.3; 800]);

        let y = cpu.enter(|| x_gpu.new_empty(x_gpu.shape()).fill_(-5)).queued().unwrap();
        assert_eq!((y.shape(), y.dtype(), y.device()), (&[1][..], DType::F32, gpu.clone()));
        assert_eq!(y.to_vec::<f32>().blocking_wait().unwrap(), [-5.0]);

        let z = gpu.enter(|| n.new_tensor([[1, 2, 3]])).queued().unwrap();
        assert_eq!((z.shape(), z.dtype(), z.device()), (&[1, 3][..], DType::I64, cpu));
        assert_eq!(z.to_vec::<i64>().blocking_wait().unwrap(), [1, 2, 3]);
    });
}

/// X12: `new_full` and `new_tensor` keep the type and device of their receiver.
#[test]
fn new_full_and_new_tensor() {
    in_child(&[], || {
        let [cpu, gpu] = cpu_and_gpu();
        let x = Tensor::empty([1], &cpu).queued().unwrap();
        let full = gpu.enter(|| x.new_full([3, 2], 0.3)).queued().unwrap();
        assert_eq!((full.shape(), full.dtype(), full.device()), (&[3, 2][..], DType::F32, cpu.clone()));
        assert_eq!(full.to_vec::<f32>().blocking_wait().unwrap(), [0.3; 6]);

        let x_gpu = Tensor::empty([1], &gpu).queued().unwrap();
        let full = cpu.enter(|| x_gpu.new_full([3, 2], -5)).queued().unwrap();
        assert_eq!((full.shape(), full.dtype(), full.device()), (&[3, 2][..], DType::F32, gpu.clone()));
        assert_eq!(full.to_vec::<f32>().blocking_wait().unwrap(), [-5.0; 6]);

        let n = Tensor::new([0], &cpu).queued().unwrap();
        let data = gpu.enter(|| n.new_tensor([[1, 2, 3]])).queued().unwrap();
        assert_eq!((data.shape(), data.dtype(), data.device()), (&[1, 3][..], DType::I64, cpu.clone()));
        assert_eq!(data.to_vec::<i64>().blocking_wait().unwrap(), [1, 2, 3]);

        // A factory function follows the current device instead.
        assert_eq!(gpu.enter(|| Tensor::full([3, 2], 0.3, ())).queued().unwrap().device(), gpu);
        // The type of the receiver also wins over that of the numbers.
        let half = Tensor::empty([1], (DType::F16, &gpu)).queued().unwrap();
        let numbers = half.new_tensor([[0.1, 2.0]]).queued().unwrap();
        assert_eq!((numbers.dtype(), numbers.device()), (DType::F16, gpu));
        let expected = [f16::from_f32(0.1), f16::from_f32(2.0)];
        assert_eq!(numbers.to_vec::<f16>().blocking_wait().unwrap(), expected);
    });
}

/// X13: `ones_like` and `zeros_like` keep size, type and device.
#[test]
fn ones_like_and_zeros_like() {
    in_child(&[], || {
        let [cpu, gpu] = cpu_and_gpu();
        for (device, other) in [(&cpu, &gpu), (&gpu, &cpu)] {
            for dtype in DType::ALL {
                let x = Tensor::empty([2, 3], (dtype, device)).queued().unwrap();
                let (ones, zeros) = other.enter(|| (Tensor::ones_like(&x), Tensor::zeros_like(&x)));
                for (made, expected) in [(ones, 1.0), (zeros, 0.0)] {
                    let made = made.queued().unwrap();
                    assert_eq!((made.shape(), made.dtype()), (x.shape(), dtype));
                    assert_eq!(made.device(), *device);
                    assert!(!made.shares_memory(&x));
                    let values = made.to(DType::F64).to_vec::<f64>().blocking_wait().unwrap();
                    assert_eq!(values, [expected; 6]);
                }
            }
        }
    });
}

/// X13, as far as it concerns order: a tensor made like another one reads nothing of it.
#[test]
fn tensors_like_another_one_need_no_edge() -> Result<()> {
    let (_runtime, device, [writes, makes]) = streams(["writes", "makes"]);
    let gate = writes.hold()?;
    let x = writes.enter(|| Tensor::full([2, 3], 7, (DType::I16, &device))).queued()?;
    // The write has not run, and no edge orders `makes` after it.
    unordered(makes.enter(|| x.add(1)));
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
        let made = block_on(made)?;
        assert_eq!((made.shape(), made.dtype()), (&[2, 3][..], DType::I16));
        assert_eq!(makes.enter(|| made.to_vec::<i16>()).blocking_wait()?, [expected; 6]);
    }
    // The memory that `empty_like` returns is free to write.
    let empty = makes.enter(|| Tensor::empty_like(&x).fill_(9)).queued()?;
    assert_eq!(makes.enter(|| empty.to_vec::<i16>()).blocking_wait()?, [9; 6]);
    gate.open();
    assert_eq!(writes.enter(|| x.to_vec::<i16>()).blocking_wait()?, [7; 6]);
    Ok(())
}

/// X14: the default type and device, changed twice. Scopes set them, and restore them.
#[test]
fn the_default_type_and_device_belong_to_scopes() {
    in_child(&[], || {
        let [cpu, gpu] = cpu_and_gpu();
        let made = || {
            let x = Tensor::new([1.2, 3.0], ()).queued().unwrap();
            let y = Tensor::empty([2], ()).queued().unwrap();
            assert_eq!((x.dtype(), x.device()), (y.dtype(), y.device()));
            (x.dtype(), x.device())
        };
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
    });
}

/// X14, in a task: a scope holds at every poll of its own future, and not in between.
#[test]
fn the_default_type_of_a_task_holds_across_its_awaits() {
    let (_runtime, device, [_]) = streams(["unused"]);
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
            && let std::task::Poll::Ready(types) = one.poll()
        {
            of_one = Some(types.unwrap());
        }
        if of_two.is_none()
            && let std::task::Poll::Ready(types) = two.poll()
        {
            of_two = Some(types.unwrap());
        }
        assert_eq!(DType::default_float(), DType::F32);
    }
    assert_eq!((of_one, of_two), (Some([DType::F64; 2]), Some([DType::BF16; 2])));
}

/// X17: the moves and conversions of one tensor keep its values, and one to where it is does
/// nothing.
#[test]
fn moves_and_conversions_keep_the_values() {
    in_child(&[], || {
        let [cpu, gpu] = cpu_and_gpu();
        let x = Tensor::new([1.5, -2.0, 3.25], &cpu).queued().unwrap();
        let steps: [(&str, Pending<Tensor>, DType, &Device); 7] = [
            ("cuda", x.cuda(), DType::F32, &gpu),
            ("cuda_on", x.cuda_on(0), DType::F32, &gpu),
            ("cpu", x.cuda().cpu(), DType::F32, &cpu),
            ("to a type", x.to(DType::F64), DType::F64, &cpu),
            ("back to a type", x.to(DType::F64).to(DType::F32), DType::F32, &cpu),
            ("to both", x.to((DType::F64, &gpu)), DType::F64, &gpu),
            ("to another tensor's", x.to((DType::F64, &gpu)).to(&x), DType::F32, &cpu),
        ];
        for (step, moved, dtype, device) in steps {
            let moved = moved.queued().unwrap();
            assert_eq!((moved.dtype(), moved.device()), (dtype, device.clone()), "{step}");
            let values = moved.to(DType::F64).to_vec::<f64>().blocking_wait().unwrap();
            assert_eq!(values, [1.5, -2.0, 3.25], "{step}");
            // To where it is, and of the type that it has, is the tensor itself.
            let like = Tensor::empty_like(&moved).queued().unwrap();
            let options: [warpline::TensorOptions; 4] =
                [device.into(), dtype.into(), (dtype, device).into(), (&like).into()];
            for target in options {
                assert!(moved.to(target).queued().unwrap().shares_memory(&moved), "{step}");
            }
        }
        // A conversion alone is a copy, also there and back.
        assert!(!x.to(DType::F64).to(DType::F32).queued().unwrap().shares_memory(&x));
    });
}
