//! Splits the declarations of one `kernel!` at the braces behind each of them, all in one step.
//!
//! Macros have no fragment for "any token but braces", and a step for each token or each kernel
//! would reach the recursion limit. So `kernel!` writes each token twice, as `~ token = token`.
//! The first one shows what the token is: each kind of token is optional between `~` and `=`, and
//! braces end the declaration. The second one is passed on.

#[doc(hidden)]
#[macro_export]
macro_rules! __kernels {
    ($(
        $( ~
            $($word:ident)? $($lifetime:lifetime)? $(( $($group:tt)* ))? $([ $($list:tt)* ])? $(_)?
            $(#)? $(,)? $(.)? $(::)? $(:)? $(!)? $(?)? $(;)? $(->)? $(..)? $(..=)?
            $(==)? $(!=)? $(<)? $(<=)? $(>)? $(>=)? $(&&)? $(||)?
            $(+)? $(-)? $(*)? $(/)? $(%)? $(&)? $(|)? $(^)? $(<<)? $(>>)?
            $(0)? $(1)? $(2)? $(3)? $(4)? $(8)? $(16)? $(32)? $(64)? $(128)? $(256)? $(512)? $(1024)?
            = $token:tt
        )*
        ~ { $($inside:tt)* } = $body:tt
    )*) => {
        $($crate::__kernel! { @kernel $($token)* $body })*
    };
    // Other tokens: a number, or the fragment of another macro. The first declaration is read step
    // by step, and the others get here again.
    ($(~ $first:tt = $token:tt)*) => {
        $crate::__kernel! { @kernel $($token)* }
    };
}
