//! Tensors of every element type, on every kind of device.

use crate::support::says;
use crate::{contract, refused};
use warpline::prelude::*;
use warpline::{DType, Scalar};

async fn as_f64(x: Pending<Tensor>) -> warpline::Result<Vec<f64>> {
    x.to(DType::F64).to_vec::<f64>().await
}

contract! {
    async fn every_type_is_made_converted_and_read([device]) {
        for dtype in DType::ALL {
            let full = Tensor::full([3], Scalar::Int(1), (dtype, &device)).queued()?;
            assert_eq!((full.dtype(), full.len()), (dtype, 3));
            assert_eq!(as_f64(full.to(dtype)).await?, [1.0; 3], "{dtype}");
            let x = Tensor::new([[0.0, 1.0, 1.0, 0.0, 1.0], [1.0; 5]], (dtype, &device)).queued()?;
            for to in DType::ALL {
                assert_eq!(x.to(to).queued()?.dtype(), to);
                let there_and_back = as_f64(x.to(to).to(dtype)).await?;
                assert_eq!(there_and_back, [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], "{dtype} {to}");
            }
            let turned = x.t().contiguous();
            assert_eq!(as_f64(turned).await?, [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0], "{dtype}");
            assert_eq!(as_f64(x.zero_()).await?, [0.0; 10], "{dtype}");
        }
        assert_eq!(Tensor::new([true, false], &device).to_vec::<bool>().await?, [true, false]);
        assert!(Tensor::full([1], true, &device).item::<bool>().await?);
    }

    async fn every_type_is_repeated_to_a_larger_shape([device]) {
        for dtype in DType::ALL {
            let column = Tensor::new([[1], [0]], (dtype, &device));
            let to = Tensor::zeros([3, 2, 2], (dtype, &device));
            let expected = [1.0, 1.0, 0.0, 0.0].repeat(3);
            assert_eq!(as_f64(to.copy_(column)).await?, expected, "{dtype}");
        }
        let (column, row) = (Tensor::arange(0, 3, 1, &device), Tensor::arange(0.0, 40.0, 10.0, &device));
        let sum = (column.reshape([3, 1]) + row).queued()?;
        assert_eq!((sum.shape(), sum.dtype()), (&[3, 4][..], DType::F32));
        let expected = [0.0, 10.0, 20.0, 30.0, 1.0, 11.0, 21.0, 31.0, 2.0, 12.0, 22.0, 32.0];
        assert_eq!(sum.to_vec::<f32>().await?, expected);
    }

    async fn every_type_is_computed_with([device]) {
        for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool) {
            let x = Tensor::new([1, 2, 3], (dtype, &device)).queued()?;
            let y = (&(&x * 3) - 1).queued()?;
            assert_eq!(y.dtype(), dtype);
            assert_eq!(as_f64(y.add_(&x)).await?, [3.0, 7.0, 11.0], "{dtype}");
            let quotient = (&y / &x).queued()?;
            assert!(quotient.dtype().is_floating_point());
            let nearest: Vec<f64> = as_f64(quotient.to(DType::F64)).await?;
            assert!(nearest.iter().zip([3.0, 3.5, 11.0 / 3.0]).all(|(x, y)| (x - y).abs() < 0.02), "{nearest:?}");
        }
        let truth = Tensor::new([[true, false], [true, true]], &device).queued()?;
        let either = (&truth + truth.narrow(0, 0, 1)).queued()?;
        assert_eq!(either.to_vec::<bool>().await?, [true, false, true, true]);
        assert_eq!((&truth * &truth).to_vec::<bool>().await?, [true, false, true, true]);
        assert_eq!((&truth + 1).to_vec::<i64>().await?, [2, 1, 2, 2]);
        // The bytes wrap around, as the type is that of the tensor with dimensions.
        assert_eq!((Tensor::full([1], 200, (DType::U8, &device)) + 100).to_vec::<u8>().await?, [44]);
    }

    async fn a_number_has_no_type_of_its_own_on_either_side([device]) {
        let exact = Tensor::new([1.0], (DType::F64, &device)).queued()?;
        assert_eq!((0.1 * &exact).to_vec::<f64>().await?, [0.1]);
        assert_eq!((0.1 - &exact).to_vec::<f64>().await?, [0.1 - 1.0]);
        assert_eq!((0.1 / &exact).to_vec::<f64>().await?, [0.1]);
        for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool) {
            let scalar = Tensor::full([], 2, (dtype, &device)).queued()?;
            let kinds = [1 * &scalar, 1 - &scalar, 1 + &scalar];
            assert!(kinds.iter().all(|x| x.as_operand().unwrap().dtype() == dtype), "{dtype}");
            assert_eq!(as_f64(10 - &scalar).await?, [8.0]);
            let quotient = (1 / &scalar).queued()?;
            let expected = if dtype.is_floating_point() { dtype } else { DType::F32 };
            assert_eq!((quotient.dtype(), as_f64(quotient.to(expected)).await?), (expected, vec![0.5]));
        }
        // It is not rounded to the type of the tensor first.
        let half = Tensor::new([0.5], (DType::F16, &device)).queued()?;
        assert_eq!(as_f64(1e5 * &half).await?, [49984.0]);
    }

    async fn numbers_that_do_not_fit_are_refused([device]) {
        let error = refused(Tensor::new([300, -1], (DType::U8, &device))).await;
        says(&error, ErrorKind::DTypeMismatch, &["new on stream", "outside the range of u8", ".to(DType::U8)"]);
        let error = refused(Tensor::arange(0, 1_i64 << 50, 1, &device)).await;
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    }

    async fn what_is_made_later_is_not_known_before([device]) {
        let stream = device.default_stream()?;
        let gate = stream.hold()?;
        let x = Tensor::full([4], 7.0, &device).queued()?;
        let here = device.clone();
        let made = x.to_vec::<f32>().map(move |x| Tensor::new(x, &here).queued());
        let mapped = x.mul(2.0).map(|x| x);
        says(&mapped.queued().unwrap_err(), ErrorKind::InvalidArgument, &["await the Pending"]);
        let mapped = x.mul(2.0).map(|x| x);
        says(&refused((&mapped).add(1.0)).await, ErrorKind::InvalidArgument, &["not known yet"]);
        gate.open();
        assert_eq!(made.await??.to_vec::<f32>().await?, [7.0; 4]);
        assert_eq!(mapped.await?.to_vec::<f32>().await?, [14.0; 4]);
    }

    async fn numbers_of_every_floating_point_type_are_drawn([device]) {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let drawn = as_f64(Tensor::rand([100], (dtype, &device))).await?;
            assert!(drawn.iter().all(|x| (0.0..=1.0).contains(x)) && drawn.iter().sum::<f64>() > 30.0);
            let x = Tensor::randn([100], (dtype, &device)).queued()?;
            assert_eq!(x.dtype(), dtype);
            assert!(as_f64(x.to(dtype)).await?.iter().any(|&x| x < 0.0));
        }
    }
}
