// The controller of the MPI Operator without the rest of its program.
//
// The upstream main listens on port 8080 of all interfaces and waits for a Lease
// before it starts. Simulated clusters share one machine and run exactly one
// operator each, so this main does not listen and starts at once. Everything
// that handles an MPIJob is upstream code.
package main

import (
	"context"
	"flag"
	"os/signal"
	"syscall"

	"github.com/kubeflow/mpi-operator/cmd/mpi-operator/app/options"
	mpijobs "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned"
	mpijobinformers "github.com/kubeflow/mpi-operator/pkg/client/informers/externalversions"
	"github.com/kubeflow/mpi-operator/pkg/controller"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func main() {
	option := options.NewServerOption()
	option.AddFlags(flag.CommandLine)
	flag.Parse()
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	if err := run(ctx, option); err != nil {
		klog.Fatal(err)
	}
}

func run(ctx context.Context, option *options.ServerOption) error {
	config, err := clientcmd.BuildConfigFromFlags(option.MasterURL, option.Kubeconfig)
	if err != nil {
		return err
	}
	config = rest.AddUserAgent(config, "mpi-operator")
	config.QPS, config.Burst = float32(option.QPS), option.Burst
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	jobs, err := mpijobs.NewForConfig(config)
	if err != nil {
		return err
	}
	return runController(ctx, kube, jobs, option)
}

func runController(ctx context.Context, kube kubernetes.Interface, jobs mpijobs.Interface, option *options.ServerOption) error {
	kubeInformers := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(option.Namespace))
	mpiJobInformers := mpijobinformers.NewSharedInformerFactoryWithOptions(jobs, 0, mpijobinformers.WithNamespace(option.Namespace))
	mpiController, err := controller.NewMPIJobController(
		ctx, kube, jobs, nil, nil,
		kubeInformers.Core().V1().ConfigMaps(),
		kubeInformers.Core().V1().Secrets(),
		kubeInformers.Core().V1().Services(),
		kubeInformers.Batch().V1().Jobs(),
		kubeInformers.Core().V1().Pods(),
		kubeInformers.Scheduling().V1().PriorityClasses(),
		mpiJobInformers.Kubeflow().V2beta1().MPIJobs(),
		option)
	if err != nil {
		return err
	}
	kubeInformers.Start(ctx.Done())
	mpiJobInformers.Start(ctx.Done())
	return mpiController.Run(option.Threadiness, ctx.Done())
}
