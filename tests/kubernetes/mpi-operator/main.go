// The real MPI Operator's controller, without the rest of its program.
//
// The upstream main takes port 8080 on all interfaces and waits for a Lease
// before it works. Simulated clusters share one machine, and each has exactly
// one operator, so this one listens nowhere and begins at once. Everything that
// a job meets is upstream's.
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
	stopped, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	if err := run(stopped, option); err != nil {
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
	return work(ctx, kube, jobs, option)
}

func work(ctx context.Context, kube kubernetes.Interface, jobs mpijobs.Interface, option *options.ServerOption) error {
	own := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(option.Namespace))
	theirs := mpijobinformers.NewSharedInformerFactoryWithOptions(jobs, 0, mpijobinformers.WithNamespace(option.Namespace))
	operator, err := controller.NewMPIJobController(
		ctx, kube, jobs, nil, nil,
		own.Core().V1().ConfigMaps(),
		own.Core().V1().Secrets(),
		own.Core().V1().Services(),
		own.Batch().V1().Jobs(),
		own.Core().V1().Pods(),
		own.Scheduling().V1().PriorityClasses(),
		theirs.Kubeflow().V2beta1().MPIJobs(),
		option)
	if err != nil {
		return err
	}
	own.Start(ctx.Done())
	theirs.Start(ctx.Done())
	return operator.Run(option.Threadiness, ctx.Done())
}
