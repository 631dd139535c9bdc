//! A step of stochastic gradient descent with momentum.
//!
//! Reads 12 bytes and writes 8 bytes per element.

warpline_runtime::kernel! {
    /// Computes velocity ← momentum·velocity + grad, then param ← param − lr·velocity, for `n`
    /// elements.
    ///
    /// This is the form of PyTorch's `torch.optim.SGD` without dampening, Nesterov and weight
    /// decay. It differs from the form of Sutskever et al. (ICML 2013), where lr is inside the
    /// velocity. The result of every operation is rounded.
    pub unsafe fn sgd(n: u64, lr: f32, momentum: f32, grad: &[f32], velocity: &mut [f32], param: &mut [f32])
    where n == grad.len() as u64 && n == velocity.len() as u64 && n == param.len() as u64
    {
        descriptor: SGD,
        ptx_from_sm_60: include_str!("../ptx/sgd.ptx"),
        cpu: |_, lr, momentum, grad, velocity, param| {
            for ((p, v), g) in param.iter_mut().zip(velocity).zip(grad) {
                *v = momentum * *v + g;
                *p -= lr * *v;
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::SGD;
    use crate::twin::{read, run, value, written};

    #[test]
    fn two_steps_are_those_of_the_formula() {
        for n in [0usize, 1, 7, 1001] {
            let grad: Vec<f32> = (0..n).map(|i| i as f32 - 2.5).collect();
            let (mut velocity, mut param) = (vec![0.0f32; n], vec![1.0f32; n]);
            for _ in 0..2 {
                let scalars = [value(n as u64), value(0.5f32), value(0.5f32)];
                let slices = [read(&grad), written(&mut velocity), written(&mut param)];
                run(&SGD, &scalars.into_iter().chain(slices).collect::<Vec<_>>());
            }
            assert!(velocity.iter().zip(&grad).all(|(v, g)| *v == 1.5 * g));
            assert!(param.iter().zip(&grad).all(|(p, g)| *p == 1.0 - 0.5 * g - 0.75 * g));
        }
    }
}
