//! The names of all entry points, by which calls are counted and failures are planned.

use std::ffi::c_void;

macro_rules! entries {
    ($($name:ident)*) => {
        /// An entry point.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Entry { $($name),* }

        /// The names of the entry points, in the order of [`Entry`].
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// The exported functions. Each is declared without its signature, because only its address
        /// is taken here.
        mod exported {
            unsafe extern "C" { $(pub(super) fn $name();)* }
        }

        /// The functions, in the order of [`Entry`].
        const FUNCTIONS: &[unsafe extern "C" fn()] = &[$(exported::$name),*];
    };
}

entries! {
    cuInit
    cuDriverGetVersion
    cuGetExportTable
    cuDeviceGetCount
    cuDeviceGet
    cuDeviceGetName
    cuDeviceGetUuid
    cuDeviceGetUuid_v2
    cuDeviceTotalMem_v2
    cuDeviceGetAttribute
    cuDeviceGetPCIBusId
    cuDevicePrimaryCtxRetain
    cuDevicePrimaryCtxRelease_v2
    cuDevicePrimaryCtxGetState
    cuCtxGetCurrent
    cuCtxSetCurrent
    cuCtxPushCurrent_v2
    cuCtxPopCurrent_v2
    cuCtxGetDevice
    cuCtxSynchronize
    cuCtxGetStreamPriorityRange
    cuCtxGetApiVersion
    cuCtxGetLimit
    cuCtxSetLimit
    cuCtxGetFlags
    cuCtxCreate_v2
    cuCtxDestroy_v2
    cuStreamCreate
    cuStreamCreateWithPriority
    cuStreamDestroy_v2
    cuStreamQuery
    cuStreamSynchronize
    cuStreamWaitEvent
    cuStreamGetCtx
    cuStreamGetPriority
    cuStreamGetFlags
    cuStreamIsCapturing
    cuStreamBeginCapture_v2
    cuStreamEndCapture
    cuStreamGetCaptureInfo_v2
    cuStreamWriteValue32_v2
    cuStreamWriteValue64_v2
    cuStreamWaitValue32_v2
    cuStreamWaitValue64_v2
    cuEventCreate
    cuEventDestroy_v2
    cuEventRecord
    cuEventQuery
    cuEventSynchronize
    cuEventElapsedTime
    cuMemAlloc_v2
    cuMemFree_v2
    cuMemGetInfo_v2
    cuMemAllocAsync
    cuMemFreeAsync
    cuMemHostAlloc
    cuMemAllocHost_v2
    cuMemFreeHost
    cuMemHostRegister_v2
    cuMemHostUnregister
    cuMemHostGetDevicePointer_v2
    cuMemHostGetFlags
    cuPointerGetAttribute
    cuMemcpyHtoD_v2
    cuMemcpyDtoH_v2
    cuMemcpyDtoD_v2
    cuMemcpyHtoDAsync_v2
    cuMemcpyDtoHAsync_v2
    cuMemcpyDtoDAsync_v2
    cuMemcpyAsync
    cuMemcpy2DAsync_v2
    cuMemcpyPeer
    cuMemcpyPeerAsync
    cuMemcpy3DPeerAsync
    cuMemsetD8_v2
    cuMemsetD8Async
    cuMemsetD16Async
    cuMemsetD32Async
    cuMemsetD2D8Async
    cuMemsetD2D16Async
    cuMemsetD2D32Async
    cuLaunchKernel
    cuLaunchKernelEx
    cuLaunchCooperativeKernel
    cuLaunchHostFunc
    cuModuleLoad
    cuModuleLoadData
    cuModuleLoadDataEx
    cuModuleUnload
    cuModuleGetFunction
    cuModuleGetGlobal_v2
    cuFuncGetAttribute
    cuFuncSetAttribute
    cuFuncSetCacheConfig
    cuFuncGetParamInfo
    cuFuncGetName
    cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
    cuOccupancyMaxPotentialBlockSize
    cuOccupancyMaxPotentialBlockSizeWithFlags
    cuOccupancyAvailableDynamicSMemPerBlock
    cuDeviceCanAccessPeer
    cuCtxEnablePeerAccess
    cuCtxDisablePeerAccess
    cuGetErrorName
    cuGetErrorString
    cuGraphDestroy
    cuThreadExchangeStreamCaptureMode
    cuCtxCreate_v3
    cuCtxCreate_v4
    cuCtxSetFlags
    cuCtxGetCacheConfig
    cuCtxSetCacheConfig
    cuCtxGetId
    cuEventElapsedTime_v2
    cuEventRecordWithFlags
    cuStreamGetId
    cuDeviceGetDefaultMemPool
    cuDeviceGetMemPool
    cuMemPoolGetAttribute
    cuMemPoolSetAttribute
    cuMemPoolTrimTo
    cuMemAllocFromPoolAsync
    cuGraphInstantiateWithFlags
    cuGraphLaunch
    cuGraphUpload
    cuGraphExecDestroy
    cuGraphGetNodes
    cuGraphExecUpdate_v2
    cuStreamWriteValue32
    cuStreamWriteValue64
    cuStreamWaitValue32
    cuStreamWaitValue64
    cuMemcpy
    cuMemsetD16_v2
    cuMemsetD32_v2
    cuMemGetAddressRange_v2
    cuMemAllocManaged
    cuStreamAttachMemAsync
    cuMemAddressReserve
    cuMemAddressFree
    cuMemCreate
    cuMemRelease
    cuMemMap
    cuMemUnmap
    cuMemSetAccess
    cuMemGetAccess
    cuMemGetAllocationGranularity
    cuMemPrefetchAsync
    cuMemPrefetchAsync_v2
    cuMemAdvise
    cuMemAdvise_v2
    cuPointerGetAttributes
    cuModuleGetLoadingMode
    cuFuncLoad
    cuDevicePrimaryCtxSetFlags_v2
    cuDevicePrimaryCtxReset_v2
    cuGetProcAddress
    cuGetProcAddress_v2
    cuLinkCreate_v2
    cuLinkAddData_v2
    cuLinkAddFile_v2
    cuLinkComplete
    cuLinkDestroy
    cuLibraryLoadData
    cuLibraryLoadFromFile
    cuLibraryUnload
    cuLibraryGetKernel
    cuLibraryGetKernelCount
    cuLibraryEnumerateKernels
    cuLibraryGetModule
    cuLibraryGetGlobal
    cuKernelGetFunction
    cuKernelGetLibrary
    cuKernelGetAttribute
    cuKernelSetAttribute
    cuKernelSetCacheConfig
    cuKernelGetName
    cuKernelGetParamInfo
    cuStreamAddCallback
    cuProfilerStart
    cuProfilerStop
    softcudaRegisterKernel
}

impl Entry {
    /// Returns the index of the entry point with that name.
    pub(crate) fn index_of(name: &str) -> Option<usize> {
        NAMES.iter().position(|known| *known == name)
    }

    /// Returns the address of the entry point with exactly that name.
    pub(crate) fn address_of(name: &str) -> Option<*const c_void> {
        Entry::index_of(name).map(|index| FUNCTIONS[index] as *const c_void)
    }

    /// Returns true if the entry point works before `cuInit` and inside a host function.
    #[inline]
    pub(crate) const fn works_always(self) -> bool {
        matches!(
            self,
            Entry::cuInit
                | Entry::cuDriverGetVersion
                | Entry::cuGetErrorName
                | Entry::cuGetErrorString
                | Entry::cuGetProcAddress
                | Entry::cuGetProcAddress_v2
                | Entry::softcudaRegisterKernel
        )
    }

    /// Returns true for calls that count as potentially unsafe if `SOFTCUDA_CAPTURE_STRICT` is set.
    pub(crate) fn may_be_unsafe(self) -> bool {
        matches!(
            self,
            Entry::cuStreamQuery
                | Entry::cuStreamSynchronize
                | Entry::cuStreamCreate
                | Entry::cuStreamCreateWithPriority
                | Entry::cuStreamDestroy_v2
                | Entry::cuEventElapsedTime
                | Entry::cuEventElapsedTime_v2
                | Entry::cuMemGetInfo_v2
                | Entry::cuMemPoolTrimTo
                | Entry::cuMemAddressReserve
                | Entry::cuMemAddressFree
                | Entry::cuMemCreate
                | Entry::cuMemRelease
                | Entry::cuMemMap
                | Entry::cuMemUnmap
                | Entry::cuMemSetAccess
                | Entry::cuModuleGetFunction
                | Entry::cuFuncLoad
        )
    }

    /// Returns true if the entry point locks the current context under `SOFTCUDA_ONE_AT_A_TIME`.
    ///
    /// Calls about devices and about the thread's current context do not. Nor do calls that wait
    /// for the device, since the driver releases its locks while it waits.
    pub(crate) fn takes_its_turn(self) -> bool {
        let name = NAMES[self as usize];
        let elsewhere = ["cuDevice", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxP", "softcuda"];
        !self.works_always()
            && !name.ends_with("Synchronize")
            && !elsewhere.iter().any(|prefix| name.starts_with(prefix))
    }
}
